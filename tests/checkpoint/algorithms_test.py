#!/usr/bin/env python3
"""The collective algorithms that a calibration chooses determine the order of reductions. Checkpoints store them, and a
run that resumes on the same mesh uses them, no matter what is calibrated there. Usage: algorithms_test.py PRUN
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRUN = sys.argv[1]
SIZES = ["layers=1", "width=32", "heads=2", "context=16", "batch=8"]


class Algorithms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        place = self.folder / "config/prun" / (os.uname().nodename + ".yaml")
        place.parent.mkdir(parents=True)
        slow, fast = "{ step: 9 ms, bandwidth: 1 MB/s }", "{ step: 1 us, bandwidth: 90 GB/s }"
        others = ", ".join(f"{name}: {slow}" for name in ("gather", "direct", "doubling", "halving"))
        place.write_text(f"include: {ROOT}/plans/clusters/dgx-a100.yaml\ntransports:\n  socket:\n    bandwidth: 1 GB/s\n"
                         f"    algorithms: {{ all_reduce: {{ ring: {fast}, {others} }} }}\n")

    def prun(self, *words, calibrated=False):
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.folder / ("config" if calibrated else "none"))}
        return subprocess.run([PRUN, *map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)

    def train(self, name, steps, *options, calibrated, ranks=4):
        sets = [word for setting in [*SIZES, f"steps={steps}"] for word in ("--set", setting)]
        folder = self.folder / name
        done = self.prun("plans/ddp.lua", "--nproc", ranks, "--transport", "socket", *sets, "--checkpoint", folder, *options, calibrated=calibrated)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder, done.stderr

    def same(self, one, other):
        done = self.prun("ckpt", "diff", one, other)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.returncode == 0

    def test_a_resumed_run_takes_those_of_its_checkpoint(self):
        whole = {way: self.train(f"whole-{way}", 4, calibrated=way)[0] for way in (True, False)}
        self.assertFalse(self.same(whole[True], whole[False]))  # otherwise the test detects nothing
        words = {True: "by another calibration of collectives", False: "without this machine's calibration"}
        for way in (True, False):
            with self.subTest(calibrated=way):
                half, _ = self.train(f"half-{way}", 2, calibrated=way)
                resumed, said = self.train(f"resumed-{way}", 4, "--resume", half, calibrated=not way)
                self.assertTrue(self.same(resumed, whole[way]))
                step = max(half.glob("step_*"))
                self.assertIn(f"prun: {step} was computed {words[way]}: collectives take the same algorithms, so that sums go on to the bit\n", said)
                _, said = self.train(f"alike-{way}", 4, "--resume", half, calibrated=way)
                self.assertNotIn("algorithms", said)
                self.assertEqual("algorithms     by calibration" in self.prun("ckpt", "show", half).stdout, way)

    def test_another_mesh_and_checkpoints_of_before_take_none(self):
        half, _ = self.train("half", 2, calibrated=False)
        _, said = self.train("fewer", 4, "--resume", half, calibrated=True, ranks=2)
        self.assertNotIn("algorithms", said)
        index = max(half.glob("step_*")) / "index.json"
        of_before = json.loads(index.read_text())
        del of_before["algorithms"]
        index.write_text(json.dumps(of_before))
        _, said = self.train("before", 4, "--resume", half, calibrated=True)
        self.assertNotIn("algorithms", said)


if __name__ == "__main__":
    del sys.argv[1]
    unittest.main()
