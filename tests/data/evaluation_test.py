#!/usr/bin/env python3
"""Evaluations on a set that batches do not divide: batches = "all" gives the mean over the set on every mesh, and a
number of batches that counts samples more than once is reported. Usage: evaluation_test.py PRUN
"""
import array
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent
EVAL = [26, 10, 7, 28, 10, 43, 15, 10, 47, 6, 27, 24, 34, 18, 35, 16, 45, 30, 20, 6, 13, 41, 20, 2, 1]  # 6 samples of 4 tokens
REPORT = "prun: {}/evaluation.lua:{}: an evaluation reads {} samples, and its set has {} (order '{}'): some count more than once; " \
         "write batches = \"all\" to evaluate each once\n"


def line_of(text):
    lines = (HERE / "evaluation.lua").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


class Evaluation(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-evaluation-"))
        self.addCleanup(shutil.rmtree, self.folder)
        draw = random.Random(3)
        self.write("train.bin", [draw.randrange(50) for _ in range(401)])
        self.write("eval.bin", EVAL)

    def write(self, name, ids):
        (self.folder / name).write_bytes(array.array("H", ids).tobytes())

    def prun(self, *words, code=0, **settings):
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        done = subprocess.run([PRUN, *map(str, words), *sets], capture_output=True, text=True, timeout=100, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def losses(self, *options, ranks=1, **settings):
        """Returns the standard error and the losses of evaluations."""
        metrics = self.folder / "m"
        metrics.unlink(missing_ok=True)
        done = self.prun(HERE / "evaluation.lua", "--nproc", ranks, "--metrics", metrics, *options, **settings)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return done.stderr, [row["eval_loss"] for row in rows if "eval_loss" in row]

    def mean(self):
        """Returns the mean over the samples, each evaluated in a batch of its own."""
        _, [loss, again] = self.losses(batch=1, batches=6)
        self.assertEqual(loss, again)
        return loss

    def test_the_whole_set_has_the_mean_of_its_samples(self):
        mean = self.mean()
        for batch in (1, 2, 3, 4, 5, 6, 7, 11):
            for order in ("epochs", "random") if batch == 4 else ("epochs",):
                said, losses = self.losses(batch=batch, batches="all", eval_order=order)
                self.assertEqual(said, "")
                for loss in losses:
                    self.assertAlmostEqual(loss, mean, delta=2e-6, msg=f"batch {batch}")
        _, losses = self.losses("--device", "reference", batch=4, batches="all", dtype="f64")
        _, alone = self.losses("--device", "reference", batch=1, batches=6, dtype="f64")
        for loss in losses:
            self.assertAlmostEqual(loss, alone[0], delta=1e-14)

    def test_on_every_mesh(self):
        mean = self.mean()
        for strategy, ranks, more in (("ddp", 2, {}), ("zero3", 2, {"micro": 2}), ("tp", 2, {}), ("cp", 2, {}), ("pp", 2, {"micro": 2})):
            for loss in self.losses(ranks=ranks, batch=4, batches="all", strategy=strategy, **more)[1]:
                self.assertAlmostEqual(loss, mean, delta=2e-6, msg=strategy)
        self.assertAlmostEqual(self.losses("--device", "cpu-queue", batch=4, batches="all")[1][0], mean, delta=2e-6)
        self.assertIn("proven: equals one rank", self.prun("check", HERE / "evaluation.lua", "--prove", "--nproc", 2, batches="all").stdout)

    def test_training_is_the_same(self):
        rows = []
        for batches in ("1", "all"):
            self.losses(batch=4, batches=batches, lr=0.1, steps=4)
            rows.append([json.loads(line)["loss"] for line in (self.folder / "m").read_text().splitlines()])
        self.assertEqual(*rows)

    def test_a_number_of_batches_that_counts_samples_twice_is_reported(self):
        line = line_of("prun.eval {")
        for command in ([], ["check"]):
            said = self.prun(*command, HERE / "evaluation.lua", batch=4, batches=2).stderr
            self.assertEqual(said, REPORT.format(HERE, line, "2 x 4", 6, "epochs"))
        self.assertEqual(self.losses(batch=4, batches=2, eval_order="random")[0], REPORT.format(HERE, line, "2 x 4", 6, "random"))
        self.assertEqual(self.losses(batch=3, batches=2)[0], "")
        self.assertEqual(self.losses(batch=8, batches=1)[0], REPORT.format(HERE, line, "1 x 8", 6, "epochs"))

    def test_held_out_samples(self):
        said, _ = self.losses(batch=4, batches=2, held=0.06)  # 24 of 401 tokens
        self.assertEqual(said, REPORT.format(HERE, line_of("prun.eval {"), "2 x 4", 5, "epochs"))
        _, [loss, _] = self.losses(batch=4, batches="all", held=0.06)
        _, [alone, _] = self.losses(batch=1, batches=5, held=0.06)
        self.assertAlmostEqual(loss, alone, delta=2e-6)
        shown = self.prun("dump", HERE / "evaluation.lua", batch=4, batches="all", held=0.06).stdout
        self.assertEqual([line for line in shown.splitlines() if line.startswith("evaluation 2")],
                         ["evaluation 2 times after every 1 step, tokens train.bin, epochs, 24 from 377 on, each of 5 samples once"])

    def test_a_step_that_is_larger_than_its_data_is_reported(self):
        self.write("train.bin", EVAL)
        said = self.prun("check", HERE / "evaluation.lua", batch=8, batches="all").stderr
        self.assertEqual(said, f"prun: {HERE}/evaluation.lua:{line_of('return prun.data.tokens')}: a step reads 8 samples, and the data "
                               "have 6 (order 'epochs'): some count more than once in it\n")

    def test_what_cannot_be_whole(self):
        said = self.prun("check", HERE / "evaluation.lua", kind="random", batches="all", code=3).stderr
        self.assertIn("prun.eval: prun.data.random has no end, so batches = \"all\" cannot be: give a number", said)
        said = self.prun("check", HERE / "evaluation.lua", batches="al", code=3).stderr
        self.assertIn("'batches' must be a whole number or \"all\"", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
