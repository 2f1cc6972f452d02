#!/usr/bin/env python3
"""Losses in several stages, named parts and metrics: `prun check` proves each mesh equal to one rank, and the reported
numbers of a run equal one rank's to 1e-12 in f64. Usage: losses_test.py PRUN
"""
import math
import pathlib
import re
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import run, steps  # noqa: E402

PLAN = "tests/parity/losses.lua"
MESHES = {"dp=2": "ddp dp", "dp=4": "zero3 dp", "pp=2 dp=2": "pipeline pp, ddp dp", "tp=2": "tensor_parallel tp",
          "dp=2 tp=2": "zero3 dp, tensor_parallel tp sequence=true", "pp=2 cp=2": "pipeline pp, context_parallel cp",
          "pp=4": "pipeline pp schedule=zb_h1"}


# Every microbatch has a balancing loss, so their number is one rank's; experts split over ep have no L2 loss.
EXPERTS = {"dp=4": "ddp dp", "ep=2": "expert_parallel ep", "dp=2 ep=2": "zero1 dp, expert_parallel ep",
           "pp=2 ep=2": "pipeline pp, expert_parallel ep", "cp=2": "context_parallel cp",
           "ep=2 tp=2": "expert_parallel ep, tensor_parallel tp sequence=true"}


def ranks_of(mesh):
    return math.prod(int(size) for size in re.findall(r"=(\d+)", mesh))


class Losses(unittest.TestCase):
    def proven(self, mesh, strategies, **settings):
        done = run(PRUN, "check", PLAN, "--nproc", ranks_of(mesh), mesh=mesh, list=strategies, **settings)
        self.assertEqual(done.returncode, 0, f"{mesh}\n{done.stderr}")
        self.assertRegex(done.stdout, r"(?m)^proven\b.*: equals one rank to", mesh)

    def test_every_mesh_is_proven(self):
        for mesh, strategies in MESHES.items():
            with self.subTest(mesh=mesh):
                self.proven(mesh, strategies)
        for mesh, strategies in EXPERTS.items():
            with self.subTest(mesh=mesh):
                self.proven(mesh, strategies, moe=True, l2=False)

    def rows(self, mesh, strategies, micro=2, **settings):
        rows = steps(PRUN, PLAN, ranks_of(mesh), "--device", "reference", mesh=mesh, list=strategies, dtype="f64",
                     micro=micro, **settings)
        numbers = ("loss", "text", "size", "z", "l2", "accuracy", "half", "level", "balance")
        for row in rows:
            self.assertAlmostEqual(row["half"] / row["text"], 0.5, delta=1e-15)
        return [{name: value for name, value in row.items() if name.removeprefix("eval_") in numbers} for row in rows]

    def equal(self, found, expected, where):
        self.assertEqual([sorted(row) for row in found], [sorted(row) for row in expected], where)
        for step, (row, right) in enumerate(zip(found, expected)):
            for name, value in right.items():
                near = 1e-12 * max(1, abs(value))
                self.assertAlmostEqual(row[name], value, delta=near, msg=f"{name}, step {step}, {where}")

    def test_reported_numbers_equal_one_ranks(self):
        one = self.rows("dp=1", "ddp dp", micro=1)
        self.assertIn("eval_accuracy", one[1])
        for mesh, strategies in MESHES.items():
            self.equal(self.rows(mesh, strategies), one, mesh)

    def test_the_balancing_loss_equals_one_ranks(self):
        one = self.rows("dp=1", "ddp dp", moe=True, l2=False)
        self.assertGreater(one[0]["balance"], 1)
        for mesh, strategies in EXPERTS.items():
            self.equal(self.rows(mesh, strategies, moe=True, l2=False), one, mesh)

    def test_recomputed_losses_equal_one_ranks(self):  # whose all-reduces run once
        units = "embed,block,head"
        for moe, l2, meshes in ((False, True, MESHES), (True, False, EXPERTS)):
            one = self.rows("dp=1", "ddp dp", micro=2 if moe else 1, moe=moe, l2=l2)
            for mesh, strategies in meshes.items():
                self.proven(mesh, strategies, moe=moe, l2=l2, again=units)
                self.equal(self.rows(mesh, strategies, moe=moe, l2=l2, again=units), one, mesh)

    def test_a_coefficient_matters(self):  # of a loss in another stage than the last
        found = self.rows("pp=2 dp=2", "pipeline pp, ddp dp", shift=0.001)
        with self.assertRaises(AssertionError):
            self.equal(found, self.rows("dp=1", "ddp dp"), "a mutant")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
