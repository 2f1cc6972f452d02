"""tools/gpu-check: everything that proves prun on GPUs, in one run and one report (README.md)."""
