"""A simulated machine with GPUs: a folder with programs that answer like prun, nvidia-smi and the tests' programs.

Every test file of this folder is called with PRUN, a built program, and TOP, the repository.
"""
import contextlib
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

PRUN, TOP = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
FAKE = pathlib.Path(__file__).resolve().parent / "fake_prun.py"
PYTHON = f"#!{sys.executable} -IS\n"  # fake programs start hundreds of times
sys.dont_write_bytecode = True
sys.path[:0] = [str(TOP / "tools"), str(TOP / "tools/bench")]
from gpu_check.main import main  # noqa: E402


class Machine(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.calls = self.folder / "calls"
        self.prun = self.program("build/bin/prun", PYTHON + FAKE.read_text())
        for plugin in ("plugins/nccl.so", "devices/cuda.so"):
            (self.folder / "build/lib/prun" / plugin).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "build/lib/prun" / plugin).touch()
        for program in ("prun_conform", "prun_conform_device"):
            self.program(f"build/libexec/prun/{program}", "")

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def gpus(self, count, name="NVIDIA Fake"):
        """Installs an nvidia-smi that lists `count` GPUs."""
        names = "".join(f"echo {name} {i}; " for i in range(1, count + 1))
        self.program("bin/nvidia-smi", f'#!/bin/sh\ncase "$1" in *name*) {names or ":"};; *) echo 580.1;; esac\n')

    def agreement(self, groups="A B", body="echo cuda device: $PRUN_CUDA_PLUGIN; echo '[  PASSED  ] 1 test.'"):
        """Installs a cuda_agreement_test with these groups; `body` runs for each of them as $group."""
        listed = "".join(f"\\n  {group}" for group in groups.split())
        return self.program("build/bin/cuda_agreement_test", f"#!/bin/sh\ncase $1 in *list*) printf 'Running main()\\nOps.{listed}\\n'; exit;; esac\n"
                            f"group=${{1#*Ops.}}\n{body}\n")

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        return {**env, "PATH": f"{self.folder / 'bin'}:{env['PATH']}", "FAKE_CALLS": str(self.calls), **more}

    def check(self, *words, prun=None, **environment):
        """Returns (exit code of gpu-check, its report)."""
        given = [] if {"--build", "--keep"} & set(words) else ["--prun", prun or self.prun]
        out, err = io.StringIO(), io.StringIO()
        with unittest.mock.patch.dict(os.environ, self.environment(**environment), clear=True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:  # in this process, because dozens of starts would take most of the test's time
                status = main([str(word) for word in (*given, "--out", self.folder / "out", *words)])
            except SystemExit as end:
                status = end.code
        done = subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())
        found = self.folder / "out/report.json"
        return done, json.loads(found.read_text()) if found.exists() else None

    def by_name(self, found):
        return {result["name"]: result for result in found["results"]}

    def lines(self, done):
        """Returns {name of a part: its line}."""
        return {line.split()[2]: line for line in done.stdout.splitlines() if " s  " in line[:10]}


def alive(process):
    for _ in range(500):  # a killed process may take a moment to end
        try:
            if pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.01)
    return True


def run_tests():
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
