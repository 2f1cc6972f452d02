#!/usr/bin/env python3
"""The end of a step: gradients are reduced as soon as they are complete, small ones last. Norms and updates of reduced
gradients do not wait for unreduced ones. Updates come after the prefetch of the parameters that the next step reads
first. Usage: overlap_test.py PRUN
"""
import pathlib
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

GPT = dict(layers=4, width=256, heads=4, context=64, batch=8)
MIB = 1 << 20


def step_of(plan, **settings):
    return program_text.programs(PRUN, plan, 2, **settings)[0]


class Overlap(unittest.TestCase):
    def test_no_reduction_waits_behind_one_whose_gradient_comes_later(self):
        for plan in ("ddp", "zero1", "zero2", "zero3"):
            ready = [op.after["compute"] for op in step_of(f"plans/{plan}.lua", **GPT)["reduce"] if "compute" in op.after]
            self.assertEqual(ready, sorted(ready), plan)
            self.assertGreater(len(ready), 4, plan)

    def test_the_last_bucket_is_small_and_those_before_grow_by_four(self):
        sizes = [op.bytes for op in step_of("plans/ddp.lua", **GPT)["reduce"] if op.reads[0].startswith("bucket")]
        self.assertGreater(len(sizes), 3)
        self.assertLessEqual(sizes[-1], MIB)
        self.assertLessEqual(sizes[-2], 4 * MIB)
        self.assertLessEqual(sizes[-3], 16 * MIB)
        self.assertGreater(sizes[-2], MIB)
        # A bucket that its last tensor overfills is split; a tensor is not.
        self.assertEqual([op.bytes // MIB for op in step_of("plans/mlp.lua")["reduce"] if op.reads[0].startswith("bucket")], [4, 4, 16, 4, 4])

    def test_without_a_first_size_only_full_buckets_are_cut(self):
        step = step_of("plans/ddp.lua", first="0 B", **GPT)
        self.assertEqual(len([op for op in step["reduce"] if op.reads[0].startswith("bucket")]), 1)

    def test_squares_of_what_is_reduced_wait_for_no_later_reduction(self):
        for plan in ("ddp", "zero1", "zero2", "zero3"):
            step = step_of(f"plans/{plan}.lua", **GPT)
            last = step["reduce"][-1].index
            waits = [op.after.get("reduce") for op in step["compute"] if op.kind == "norm2"]
            self.assertEqual(waits[1:], [last - 1, last], plan)
            self.assertLess(waits[0] or 0, last - 1, plan)  # None: the slot that it reads was reduced before

    def test_the_norm_is_summed_where_it_is_computed(self):
        kinds = [op.kind for op in step_of("plans/zero1.lua", **GPT)["compute"]]
        self.assertEqual(kinds[kinds.index("clip_coefficient") - 1], "all_reduce")

    def test_updates_without_a_norm_begin_before_the_last_reductions_end(self):
        step = step_of("tests/golden/unclipped.lua")
        updates = [op for op in step["compute"] if op.kind == "sgd"]
        self.assertEqual([op.unit for op in updates], ["layer2", "layer3", "layer1", "layer0", "layer4"])
        self.assertEqual([op.after.get("reduce") for op in updates], [None, None, 4, 5, None])
        ahead = [op.after.get("compute") for op in step["gather"] if op.writes[0].endswith(".ahead")]
        self.assertEqual(ahead, [updates[3].index, None])  # the last update comes after them
        # Nothing is gathered, so updates follow the order in which gradients complete.
        updates = [op for op in step_of("plans/mlp.lua")["compute"] if op.kind == "adamw"]
        waits = [op.after["reduce"] for op in updates if "reduce" in op.after]
        self.assertEqual(waits, sorted(waits))
        self.assertEqual(updates[-1].unit, "layer0")

    def test_the_end_of_a_step_does_not_wait_for_the_gathers_of_the_next_one(self):
        for plan in ("zero1", "zero2", "zero3", "fsdp"):
            step = step_of(f"plans/{plan}.lua", **GPT)
            ahead = {op.writes[0]: op.index for op in step["gather"] if op.writes[0].endswith(".ahead")}
            self.assertEqual(list(ahead), ["embed.full.ahead", "block0.full.ahead"], plan)
            self.assertEqual(list(ahead.values()), [len(step["gather"]) - 2, len(step["gather"]) - 1], plan)
            self.assertNotIn("gather", step["compute"][-1].after, plan)
            waits = {op.unit: op.after_before["gather"] for op in step["compute"] if "gather" in op.after_before}
            self.assertEqual(waits, {"embed": ahead["embed.full.ahead"], "block0": ahead["block0.full.ahead"]}, plan)
            self.assertNotEqual(step["compute"][0].unit, "embed")  # the next batch is read meanwhile

    def test_a_device_that_runs_steps_as_wholes_waits_for_them(self):
        text = program_text.run(PRUN, "dump", "plans/zero3.lua", "--nproc", 2, "--device", "cpu-queue", check=True, **GPT).stdout
        step = program_text.read_step(text)
        self.assertEqual(step["compute"][-1].after["gather"], len(step["gather"]) - 1)
        self.assertEqual([op for op in step["compute"] if "gather" in op.after_before], [])

    def test_what_lies_in_a_slot_still_is_not_gathered_again(self):
        for prefetch, again in ((1, []), (0, ["block3"])):
            gathers = step_of("plans/zero3.lua", prefetch=prefetch, **GPT)["gather"]
            self.assertEqual([op.unit for op in gathers if op.phase == "backward"], again + ["block2", "block1", "block0"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
