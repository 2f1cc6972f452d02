#!/usr/bin/env python3
"""TensorBoard's reader finds the metrics in the converted event files. PyPI's tensorboard is installed in a venv of the
build folder; if that fails, the test prints the reason and counts as skipped.
Usage: tensorboard_test.py PRUN BUILD
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import venv

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
CONVERT = TOP / "tools/tensorboard/prun_tensorboard.py"
SKIPPED = 77


def with_tensorboard(build):
    """Returns a Python that has tensorboard, or None."""
    place = pathlib.Path(build, "tensorboard")
    python = place / "bin/python"
    ready = [python, "-c", "import tensorboard"]
    if not python.exists():
        venv.create(place, with_pip=True)
    if subprocess.run(ready, stderr=subprocess.DEVNULL).returncode == 0:
        return python
    subprocess.run([python, "-m", "pip", "install", "-q", "tensorboard==2.*"], stdin=subprocess.DEVNULL)
    return python if subprocess.run(ready).returncode == 0 else None


class TensorBoard(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = pathlib.Path(folder.name)

    def convert(self, *words):
        return subprocess.run([sys.executable, CONVERT, *words], capture_output=True, text=True, cwd=self.here)

    def read(self, folder):
        """Returns tag -> [(step, wall time, value)], as TensorBoard's server reads a run's folder."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        events = EventAccumulator(str(self.here / folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        return {tag: [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    def test_runs_become_curves(self):
        for lr in ("0.001", "0.01"):
            subprocess.run([PRUN, TOP / "tests/parity/gpt.lua", "--set", "strategy=single", "--set", "eval=2", "--set", "report=2", "--set", "steps=4",
                            "--set", "clip=1", "--set", f"lr={lr}", "--runs", self.here / "runs"], check=True, stdout=subprocess.DEVNULL)
        for _ in range(2):  # a second conversion replaces the first
            done = self.convert("runs", "--out", "board")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^\d+ rows of 2 runs: tensorboard --logdir board\n$")
        for run in (self.here / "runs").iterdir():
            found = self.read(f"board/{run.name}")
            rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            steps = [row for row in rows if "loss" in row]
            self.assertEqual(len(found["loss/train"]), 4)
            for (step, when, value), row in zip(found["loss/train"], steps, strict=True):
                self.assertEqual(step, row["step"])
                self.assertAlmostEqual(when, row["wall_time"], places=3)
                self.assertAlmostEqual(value, row["loss"], delta=1e-6 * row["loss"])
            self.assertEqual([step for step, _, _ in found["loss/eval"]], [2, 4])
            self.assertEqual([step for step, _, _ in found["grad_norm/block0"]], [2, 4])
            self.assertTrue({"learning_rate", "grad_norm", "tokens_per_s", "memory_bytes"} <= set(found))

    def test_a_loss_that_is_no_number_is_a_gap(self):
        (self.here / "m").write_text('{"step":1,"loss":2.5,"wall_time":10}\n{"step":2,"loss":null,"wall_time":11}\n{"step":3,"loss":')
        self.assertEqual(self.convert("m", "--out", "board").returncode, 0)
        self.assertEqual(self.read("board"), {"loss/train": [(1, 10.0, 2.5)]})

    def test_what_is_no_metrics(self):
        (self.here / "m").write_text('{"step":1}\nloss 5\n')
        self.assertIn("m:2 is no row of metrics", self.convert("m", "--out", "board").stderr)
        done = self.convert("nothing", "--out", "board")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing is no file and no folder of runs", done.stderr)


if __name__ == "__main__":
    PRUN, BUILD = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    python = with_tensorboard(BUILD)
    if python is None:
        print("PyPI's tensorboard is not here and cannot be had: not checked")
        sys.exit(SKIPPED)
    if not pathlib.Path(sys.prefix).samefile(python.parent.parent):
        os.execv(python, [python, sys.argv[0], PRUN, BUILD])
    unittest.main(argv=sys.argv[:1])
