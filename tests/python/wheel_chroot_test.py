#!/usr/bin/env python3
"""The wheel in clean systems: Debian 12 and 13, each only its base and Python, made by debootstrap. There it installs and
trains. PRUN_WHEEL names a wheel; by default the finished build is packed. Exits with 77 if it cannot run.
Usage: wheel_chroot_test.py BUILD PRUN
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import venv_of_tests

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/gpu_check"))
from chroot_test import expect, in_root, mirror, skip  # noqa: E402

SUITES = ["bookworm", "trixie"]
INSTALL_S, FIRST_ROW_S = 10, 2


def wheel_in(folder):
    if "PRUN_WHEEL" in os.environ:
        return pathlib.Path(os.environ["PRUN_WHEEL"])
    subprocess.run([venv_of_tests.python_with_packages(sys.argv[1]), "-m", "pip", "wheel", "-q", str(TOP), "--no-build-isolation", "--no-deps",
                    "-w", folder, "-C", f"built={pathlib.Path(sys.argv[1]).resolve()}"], check=True)
    return next(pathlib.Path(folder).glob("*.whl"))


def held_in(suite, uri, wheel, root):
    made = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3-venv", suite, root, uri], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"debootstrap of {suite} failed: {(made.stdout + made.stderr).strip().splitlines()[-1:]}")
    shutil.copy(wheel, root / "tmp")
    (root / "dev/shm").mkdir(exist_ok=True)
    done = in_root(str(root), "python3 -m venv /tmp/venv")
    held = [expect(f"{suite}: an empty virtual environment", done.returncode == 0, done)]
    begin = time.monotonic()
    done = in_root(str(root), f"/tmp/venv/bin/pip install -q --no-index /tmp/{wheel.name}")
    seconds = time.monotonic() - begin
    held.append(expect(f"{suite}: installs in {seconds:.1f} s", done.returncode == 0 and seconds < INSTALL_S, done))
    done = in_root(str(root), "date +%s.%N && cd /tmp && /tmp/venv/bin/prun plans/zero3.lua --nproc 2 --set layers=1 --set steps=1 -q --metrics -")
    times = re.match(r'([\d.]+)\n\{"step":1,.*"wall_time":([\d.]+)', done.stdout)
    seconds = float(times[2]) - float(times[1]) if times else float("inf")
    held.append(expect(f"{suite}: the first row after {seconds:.1f} s", done.returncode == 0 and seconds < FIRST_ROW_S, done))
    code = "import prun; print(len(prun.run('plans/ddp.lua', nproc=2, set=dict(layers=1, width=32, batch=8, steps=3))))"
    done = in_root(str(root), f'cd /tmp && /tmp/venv/bin/python -c "{code}"')
    held.append(expect(f"{suite}: the package trains", done.stdout == "3\n", done))
    return held


def main():
    if os.geteuid() != 0 or shutil.which("debootstrap") is None or shutil.which("apt-get") is None:
        skip("it needs root, apt and debootstrap")
    uri, codename = mirror()
    if uri is None:
        skip(f"apt has no index of {codename} (apt-get update)")
    held = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = wheel_in(folder)
        for suite in SUITES:
            held += held_in(suite, uri, wheel, pathlib.Path(folder, suite))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
