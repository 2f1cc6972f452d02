#!/usr/bin/env python3
"""The wheel: packs the finished build, installs it in an empty virtual environment, and trains with it there. Nothing is
compiled. PRUN_WHEEL names another wheel, for example one that `pip wheel .` compiled. Usage: wheel_test.py BUILD
"""
import base64
import csv
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import venv
import zipfile

import venv_of_tests

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
LARGEST = 25_000_000  # bytes, apart from devices and transports for GPUs
INSTALL_S, FIRST_ROW_S = 10, 2
SLOW = 3 if os.environ.get("CI") else 1  # other tests run at the same time there


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.here = pathlib.Path(cls.folder.name)
        cls.wheel = pathlib.Path(os.environ["PRUN_WHEEL"]) if "PRUN_WHEEL" in os.environ else cls.packed()
        venv.create(cls.here / "empty", with_pip=True)
        cls.python = cls.here / "empty/bin/python"
        begin = time.monotonic()
        subprocess.run([cls.python, "-m", "pip", "install", "-q", "--no-index", cls.wheel], check=True)
        cls.install_s = time.monotonic() - begin

    @classmethod
    def packed(cls):
        command = [venv_of_tests.python_with_packages(BUILD), "-m", "pip", "wheel", str(TOP), "--no-build-isolation", "--no-deps",
                   "-w", str(cls.here), "-C", f"built={BUILD}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        [wheel] = cls.here.glob("*.whl")
        return wheel

    def run_in_empty(self, *words):
        environment = {name: value for name, value in os.environ.items() if name not in ("PRUN_COMMAND", "PYTHONPATH")}
        done = subprocess.run([self.here / "empty/bin" / words[0], *words[1:]], capture_output=True, text=True, cwd=self.here,
                              env=environment, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_file(self):
        version = re.search(r"project\(prun VERSION ([\d.]+)", (TOP / "CMakeLists.txt").read_text())[1]
        self.assertRegex(self.wheel.name, rf"^prun-{re.escape(version)}-py3-none-manylinux_2_\d\d_\w+\.whl$")
        with zipfile.ZipFile(self.wheel) as wheel:
            sizes = {info.filename: info.compress_size for info in wheel.infolist()}
        gpu = sum(size for name, size in sizes.items() if pathlib.Path(name).name in ("cuda.so", "nccl.so"))
        self.assertLess(self.wheel.stat().st_size - gpu, LARGEST, sorted(sizes.items(), key=lambda item: -item[1])[:8])
        for name in ("bin/prun", "lib/prun/plugins/shm.so", "lib/prun/plugins/socket.so", "share/prun/lua/prun/init.lua",
                     "share/prun/plans/zero3.lua", "libexec/prun/tokenize", "py.typed"):
            self.assertIn(f"prun/{name}", sizes)
        self.assertNotIn("prun/lib/prun/plugins/ucx.so", sizes)
        self.assertFalse([name for name in sizes if name.endswith((".a", ".h", ".cmake"))])

    def test_names_its_glibc(self):
        """In a file that import compares with the system's, and that is recorded as every other."""
        major, minor = re.search(r"manylinux_(\d+)_(\d+)_", self.wheel.name).groups()
        with zipfile.ZipFile(self.wheel) as wheel:
            text = wheel.read("prun/glibc_version")
            [record] = [name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")]
            rows = {row[0]: row[1] for row in csv.reader(wheel.read(record).decode().splitlines())}
            self.assertEqual(set(rows), {name for name in wheel.namelist() if not name.endswith("/")})
            for name, recorded in rows.items():
                digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                self.assertEqual(recorded, "" if name == record else f"sha256={digest}", name)
        self.assertEqual(text.decode(), f"{major}.{minor}\n")
        self.assertEqual(self.run_in_empty("python", "-c", "import prun; print('imported')"), "imported\n")
        (self.here / "copied").mkdir()
        [installed] = self.here.glob("empty/lib/python3*/site-packages/prun")
        shutil.copytree(installed, self.here / "copied/prun", ignore=lambda folder, names: {"lib", "libexec", "share"} & set(names))
        (self.here / "copied/prun/glibc_version").write_text("2.999\n")
        done = subprocess.run([sys.executable, "-c", "import prun"], capture_output=True, text=True, env={
            "PYTHONPATH": str(self.here / "copied")})
        self.assertIn("needs glibc 2.999 or newer, and this system has glibc", done.stderr)

    def test_installs_quickly(self):
        self.assertLess(self.install_s, INSTALL_S * SLOW)

    def test_first_row(self):
        begin = time.monotonic()
        words = ["plans/zero3.lua", "--nproc", "2", "--set", "layers=1", "--set", "steps=1", "-q", "--metrics", "-"]
        self.assertIn('"step":1', self.run_in_empty("prun", *words))
        self.assertLess(time.monotonic() - begin, FIRST_ROW_S * SLOW)

    def test_package(self):
        code = "import prun; print(prun.__file__, len(prun.run('plans/ddp.lua', nproc=2, set=dict(layers=1, width=32, batch=8, steps=3))))"
        self.assertRegex(self.run_in_empty("python", "-c", code), r"/empty/lib/.*/prun/__init__\.py 3\n$")

    def test_tools(self):
        self.assertIn("--tokenizer", self.run_in_empty("python", "-m", "prun.tokenize", "--help"))
        done = subprocess.run([self.python, "-m", "prun.tensorboard", "runs"], capture_output=True, text=True, cwd=self.here)
        self.assertIn("pip install tensorboard", done.stderr)
        self.assertIn("0 failures", self.run_in_empty("prun", "doctor"))


if __name__ == "__main__":
    venv_of_tests.python_with_packages(BUILD)
    unittest.main(argv=sys.argv[:1])
