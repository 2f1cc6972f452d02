#!/usr/bin/env python3
"""The result of a plan does not depend on the order of its strategies, an axis of one rank, a limit of 0 bytes, or
stages with different contents. `prun check` proves each plan equal to one rank. Usage: axes_test.py PRUN
"""
import itertools
import math
import pathlib
import re
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import run, steps  # noqa: E402

AXES, STAGES = "tests/parity/axes.lua", "tests/parity/stages.lua"


def ranks_of(mesh):
    return math.prod(int(size) for size in re.findall(r"=(\d+)", mesh))


class Proven(unittest.TestCase):
    def proven(self, plan, ranks, *options, **settings):
        done = run(PRUN, "check", plan, "--nproc", ranks, *options, **settings)
        self.assertEqual(done.returncode, 0, f"{settings}\n{done.stderr}")
        self.assertRegex(done.stdout, r"(?m)^proven\b.*: equals one rank to", settings)


class Order(Proven):
    """A plan's strategies may be in any order."""

    def any_order(self, mesh, *strategies, **settings):
        for order in itertools.permutations(strategies):
            self.proven(AXES, ranks_of(mesh), mesh=mesh, list=", ".join(order), **settings)

    def test_sharding_stands_anywhere(self):
        for sharding in ("zero1 dp", "zero2 dp", "zero3 dp persist_below=600"):
            self.any_order("dp=2 cp=2", sharding, "context_parallel cp")
        self.any_order("replicate=2 dp=2", "zero3 dp", "ddp replicate")
        self.any_order("dp=2 ep=2", "zero1 dp", "expert_parallel ep", model="moe")
        self.any_order("pp=2 cp=2 dp=2", "zero2 dp", "context_parallel cp", "pipeline pp")
        self.any_order("dp=2 cp=2 tp=2", "fsdp dp", "context_parallel cp", "tensor_parallel tp sequence=true", model="llama")

    def test_the_plan_with_everything_as_an_argument(self):
        for zero in (1, 2, 3):
            self.proven("plans/gpt.lua", 4, cp=2, zero=zero)


class AxisOfOne(Proven):
    def test_beside_axes_of_several_ranks(self):
        for sharding in ("zero1", "zero2", "zero3", "fsdp"):
            for settings in (dict(norms=True), dict(clip=0.0)):
                self.proven(AXES, 2, "--non-finite", "skip", mesh="dp=1 tp=2", list=f"{sharding} dp, tensor_parallel tp", **settings)
        self.proven(AXES, 2, "--check-replicas", 1, mesh="pp=2 dp=1 cp=1", norms=True,
                    list="context_parallel cp, zero1 dp offload=optimizer, pipeline pp schedule=zb_h1")
        self.proven("plans/gpt.lua", 2, tp=2, zero=1)

    def test_has_the_numbers_of_a_plan_without_it(self):
        def numbers(mesh, strategies):
            rows = steps(PRUN, AXES, 2, "--device", "reference", mesh=mesh, list=strategies)
            return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row]
        without = numbers("tp=2", "tensor_parallel tp")
        for strategies in ("zero1 dp, tensor_parallel tp", "tensor_parallel tp, zero3 dp, context_parallel cp"):
            self.assertEqual(numbers("dp=1 cp=1 tp=2", strategies), without, strategies)

    def test_sharding_over_one_rank_leaves_room_for_another(self):
        for strategies in ("zero1 dp, zero3 shard", "fsdp shard, zero2 dp", "zero3 dp persist_below=600, zero1 shard"):
            self.proven(AXES, 2, mesh="dp=1 shard=2", list=strategies)
        self.proven(AXES, 2, mesh="dp=1 shard=1 tp=2", list="zero3 shard, tensor_parallel tp, zero1 dp")

    def test_sharding_over_one_rank_leaves_whole_weights_to_average(self):
        for strategies, dtype in (("averages r, zero1 dp", "f32"), ("zero3 dp, averages r", "bf16")):
            done = run(PRUN, "check", AXES, "--nproc", 2, "--check-replicas", 2, mesh="dp=1 r=2", list=strategies, dtype=dtype)
            self.assertIn("their averages equal one rank's", done.stdout, done.stderr)
        without, offloaded = (
            [row.get("loss") for row in steps(PRUN, AXES, 2, mesh="dp=1 r=2", list=strategies, dtype="bf16", steps=4)]
            for strategies in ("averages r", "fsdp dp offload=optimizer, averages r"))
        self.assertEqual(without, offloaded)

    def test_weights_do_not_drift_on_one_rank(self):
        self.proven(AXES, 2, mesh="one=1 tp=2", list="averages one, tensor_parallel tp")


class NoBytes(Proven):
    def test_a_bound_of_any_size(self):
        for bound in ("0 B", "1 B", "9007199254740991 B"):
            self.proven("plans/custom/small_whole.lua", 2, below=bound, layers=1, width=32, context=16, batch=4)
        for option in ("bucket=0", "first=0", "bucket=1", "bucket=9007199254740991"):
            self.proven(AXES, 2, list=f"ddp dp {option}")
        self.proven(AXES, 2, list="zero3 dp persist_below=9007199254740991")


class Stages(Proven):
    def test_their_layers_may_be_listed(self):
        for ranks, pp, chunks, layers, stages in ((2, 2, 1, 4, "1,3"), (4, 2, 2, 6, "1,2,2,1"), (8, 8, 1, 24, "1,4,4,3,3,4,4,1")):
            self.proven("plans/gpt.lua", ranks, pp=pp, chunks=chunks, layers=layers, stages=stages)

    def test_all_have_the_same_bodies(self):
        for strategy, dp in (("ddp", 1), ("zero1", 2), ("zero3", 1)):
            self.proven(STAGES, 4 * dp, "--check-replicas", 1, strategy=strategy, dp=dp)
        for clip in (0.0, 1.0):
            self.proven(STAGES, 4, "--check-replicas", 1, "--non-finite", "skip", bare=True, clip=clip)

    def test_they_run(self):
        for bare in (False, True):
            rows = steps(PRUN, STAGES, 4, "--check-replicas", 1, bare=bare)
            self.assertEqual([row["step"] for row in rows if "loss" in row], [1, 2])
            self.assertEqual(len([row for row in rows if "report" in row]), 4)  # two stages


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
