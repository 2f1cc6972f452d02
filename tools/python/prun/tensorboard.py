"""TensorBoard's files from rows of metrics: `python -m prun.tensorboard runs --out board`."""
from __future__ import annotations

from .tools import run_tool

if __name__ == "__main__":
    run_tool("tensorboard/prun_tensorboard.py")
