#!/usr/bin/env python3
"""tools/gpu-check --pack: its build, the archive's dependencies, and a run in another folder.
Usage: pack_test.py PRUN TOP
"""
# ruff: noqa: I001  (played.py makes gpu_check importable)
import json
import pathlib
import subprocess
import tempfile
import unittest.mock

from played import PRUN, TOP, Machine, run_tests

from gpu_check import needs

TINY = ("layers=1", "width=16", "heads=1", "context=8", "batch=4", "steps=1")
CMAKE_ERROR = """CMake Error at plugins/cuda/CMakeLists.txt:30 (message):
  PRUN_CUDA_ARCHITECTURES: nvcc 13.0 does not know '95' (it knows 75 80 90
  100).
  Fix: -DPRUN_CUDA_ARCHITECTURES="80-real;90-real"


Call Stack (most recent call first):
"""


class Building(Machine):
    """Builds with a fake cmake and a fake ninja."""

    def setUp(self):
        super().setUp()
        self.gpus(0)
        (self.folder / "build/build.ninja").touch()

    def played(self, cmake="echo -- fine", ninja="true"):
        self.program("bin/cmake", f'#!/bin/sh\necho cmake "$@" >>$FAKE_CALLS\n{cmake}\n')
        self.program("bin/ninja", '#!/bin/sh\ncase "$*" in *targets*) printf "prun_device_cuda: phony\\ncuda_agreement_test: phony\\n"; exit;; esac\n'
                                  f'echo ninja "$@" >>$FAKE_CALLS\n{ninja}\n')

    def build(self, *words, **played):
        self.played(**played)
        return self.check("--build", str(self.folder / "build"), *(words or ("--only", "build")))

    def test_every_call_builds_changed_files(self):
        for calls in (1, 2):
            done, found = self.build()
            self.assertEqual([r["status"] for r in found["results"]], ["pass", "pass"], done.stdout)
            made = [line for line in self.calls.read_text().splitlines() if line.startswith("ninja")]
            self.assertEqual(len(made), calls)
        self.assertEqual(done.returncode, 2)  # success, but no GPU

    def test_no_substitute_is_built(self):
        self.build()
        calls = self.calls.read_text().splitlines()
        self.assertNotIn("PRUN_TESTS", calls[0])
        self.assertTrue(calls[-1].endswith("prun prun_shm prun_socket prun_conform prun_conform_device prun_device_cuda cuda_agreement_test"), calls[-1])

    def test_a_build_that_fails(self):
        done, found = self.build(ninja="echo 'FAILED: x.o'; echo error: expected a semicolon >&2; exit 1")
        self.assertEqual((done.returncode, found["results"][1]["note"]), (1, "x.o does not compile: exit 1: error: expected a semicolon"))
        done, found = self.build(cmake="echo '-- device cuda is not built: no CUDA Toolkit'")
        self.assertEqual((done.returncode, found["results"][0]["note"]), (1, "device cuda is not built: no CUDA Toolkit"))

    def test_one_command_builds_and_packs(self):
        archive = self.folder / "packed.tar.gz"
        done, _ = self.build("--pack", str(archive), "--architectures", "90-real")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-DPRUN_CUDA_ARCHITECTURES=90-real", self.calls.read_text())
        self.assertRegex(done.stdout, r"configure: everything found\ncompile: 7 targets in 0 s\n.*packed.tar.gz: 0.\d MiB in \d s, without bin/cuda_agreement_test, ")
        self.assertIn("gpu-check/tools/gpu-check --budget 150", done.stdout)

    def test_an_architecture_that_nvcc_does_not_know(self):
        self.program("error", f"#!/bin/sh\ncat >&2 <<'EOF'\n{CMAKE_ERROR}EOF\nexit 1\n")
        done, _ = self.build("--pack", str(self.folder / "packed.tar"), "--architectures", "95", cmake=str(self.folder / "error"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("gpu-check: --pack: PRUN_CUDA_ARCHITECTURES: nvcc 13.0 does not know '95' (it knows 75 80 90 100). Fix: ", done.stderr)
        self.assertFalse((self.folder / "packed.tar").exists())

    def test_programs_with_an_rpath_need_no_library_path(self):
        with open(self.prun, "a") as file:
            file.write("# $ORIGIN/../lib/needed\n")
        self.build("--pack", str(self.folder / "packed.tar"))
        subprocess.run(["tar", "xf", self.folder / "packed.tar", "-C", self.folder], check=True)
        self.assertEqual(json.loads((self.folder / "gpu-check/needs.json").read_text())["library_path"], "")

    def test_an_archive_that_is_too_large(self):
        with unittest.mock.patch("gpu_check.pack.MOST_MIB", 0):
            done, _ = self.build("--pack", str(self.folder / "packed.tar.xz"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("are more than the 0 that travel well; fewer --architectures make it smaller", done.stderr)


class Packed(Machine):
    unpacked = None  # (--pack's output, the package's folder), made once

    def unpack(self):
        if Packed.unpacked is None:
            folder = tempfile.TemporaryDirectory()
            self.addClassCleanup(folder.cleanup)
            archive = pathlib.Path(folder.name, "packed.tar")
            done, _ = self.check("--pack", str(archive), prun=PRUN)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            subprocess.run(["tar", "xf", archive, "-C", folder.name], check=True)
            Packed.unpacked = done, pathlib.Path(folder.name, "gpu-check")
        return Packed.unpacked

    def test_an_archive_runs_elsewhere(self):
        done, top = self.unpack()
        prun = top / "build/gpu/bin/prun"
        libraries = {path.name for path in (prun.parent.parent / "lib/needed").iterdir()}
        self.assertTrue(any(name.startswith("liblua") for name in libraries), libraries)
        self.assertFalse(any(name.startswith(("libc.so", "libstdc++", "libcublas")) for name in libraries), libraries)
        self.assertRegex(done.stdout, r"it needs GLIBC 2\.\d+ and GLIBCXX 3\.\d+\.\d+ or newer there")
        done = subprocess.run([top / "tools/gpu-check", "--device", "cpu", "--only", "parity", "--plans", "single", "--ranks", "1", "--small",
                               "--budget", "60"], capture_output=True, text=True)  # it uses the prun of the archive
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        ran = subprocess.run([prun, "plans/ddp.lua", "--nproc", "2", *(word for setting in TINY for word in ("--set", setting))],
                             capture_output=True, text=True, cwd=top)
        self.assertEqual(ran.returncode, 0, ran.stderr)  # with the transports of the archive
        self.assertIn("over shm", ran.stdout + ran.stderr)
        path = json.loads((top / "needs.json").read_text())["library_path"]
        finds = b"$ORIGIN/../lib/needed" in PRUN.read_bytes()  # false for CI's build
        self.assertEqual(path, "" if finds else "build/gpu/lib/needed")
        plans = subprocess.run([prun, "plans", "--json"], capture_output=True, text=True, cwd=self.folder)
        self.assertIn("zero3", plans.stdout, plans.stderr)

    def test_a_package_of_a_newer_system_says_so(self):
        _, top = self.unpack()
        for versions, message in (({"GLIBC": "9.99"}, r"this package needs glibc 9.99 or newer, and this machine has 2\.\d+: build it where that is at most 2"),
                                  ({"GLIBCXX": "9.9.9"}, r"this package needs libstdc\+\+ \(symbols GLIBCXX\) 9.9.9 or newer, and this machine has 3\.4\.\d+")):
            self.addCleanup((top / "needs.json").write_text, (top / "needs.json").read_text())
            (top / "needs.json").write_text(json.dumps({"versions": versions}))
            done = subprocess.run([top / "tools/gpu-check", "--budget", "150"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, message)

    def test_versions_are_compared_as_numbers(self):
        with unittest.mock.patch("gpu_check.needs.here", lambda: {"GLIBC": "2.9"}):
            self.assertEqual(needs.unmet({"versions": {"GLIBC": "2.9"}}), "")
            self.assertIn("glibc 2.34 or newer, and this machine has 2.9", needs.unmet({"versions": {"GLIBC": "2.34"}}))
        self.assertIsNone(needs.read(TOP))


if __name__ == "__main__":
    run_tests()
