#!/usr/bin/env python3
"""Work between steps does not affect all-gathers that are carried over the end of a step: with evaluations, reports,
comparisons of replicas, checkpoints, a killed rank and a resume, losses and norms are bitwise the same.
Usage: between_test.py PRUN
"""
import pathlib
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import run, steps  # noqa: E402

PLAN = "tests/parity/between.lua"
CASES = [(2, dict(strategy="zero1", dtype="bf16")), (2, dict(strategy="zero3", dtype="bf16")),
         (2, dict(strategy="zero2", micro=3)), (4, dict(strategy="zero3", pp=2, micro=2))]


def trained(ranks, *options, **settings):
    rows = steps(PRUN, PLAN, ranks, *options, **settings)
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in rows if "loss" in row}


class Between(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_something_goes_on(self):
        for ranks, settings in CASES:
            dump = run(PRUN, "dump", PLAN, "--nproc", ranks, check=True, **settings).stdout
            self.assertRegex(dump, r"after gather@\d+ of the step before", settings)

    def test_what_comes_between_steps_changes_nothing_of_them(self):
        for number, (ranks, settings) in enumerate(CASES):
            with self.subTest(**settings):
                plain = trained(ranks, **settings)
                self.assertEqual(len(plain), 6)
                kept, killed = self.folder / f"kept{number}", self.folder / f"killed{number}"
                self.assertEqual(plain, trained(ranks, "--check-replicas", 1, "--checkpoint", kept, "--checkpoint-every", 1,
                                                between=1, **settings))
                self.assertEqual(plain, trained(ranks, "--checkpoint", killed, "--checkpoint-every", 2, "--max-restarts", 1,
                                                "--chaos", f"kill:rank={ranks - 1}@step=5", between=1, **settings))
                rest = trained(ranks, "--resume", kept / "step_00000003", **settings)
                self.assertEqual({step: row for step, row in plain.items() if step > 3}, rest)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
