"""Reruns a test in a Python with packages of PyPI, because the tests' own Python has none of them."""
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGES = ["torch", "transformers", "safetensors", "numpy", "tokenizers"]


def python_of(venv, wanted=PACKAGES):
    """Returns the path of that Python."""
    if python := os.environ.get("PRUN_HF_PYTHON", ""):
        return python
    venv = pathlib.Path(venv)
    if not (venv / "done").exists():
        if venv.exists() and not (venv / "begun").exists():
            raise SystemExit(f"{venv} was not made by these tests: PRUN_HF_PYTHON={venv}/bin/python takes it as it is")
        shutil.rmtree(venv, ignore_errors=True)  # of a test that was interrupted
        print(f"making {venv} with {', '.join(wanted)}, once", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        (venv / "begun").touch()
        if subprocess.run([str(venv / "bin/pip"), "install", "-q", *wanted]).returncode != 0:
            raise SystemExit(f"pip cannot install {', '.join(wanted)}: PRUN_HF_PYTHON=/path/of/python names one "
                             "that has them")
        (venv / "done").touch()
    return str(venv / "bin/python")


def run_inside(file, venv, wanted=PACKAGES):
    """Returns if this is that Python; otherwise reruns `file` in it. `venv` is created if missing; PRUN_HF_PYTHON names
    another.
    """
    if "--inside" in sys.argv:
        return
    python = python_of(venv, wanted)
    os.execv(python, [python, file, *sys.argv[1:], "--inside"])
