"""tools/gpu-check: tests and measures prun on GPUs, in one run and one report (README.md)."""
