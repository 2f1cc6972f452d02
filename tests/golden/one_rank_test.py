#!/usr/bin/env python3
"""A group of one rank needs no communication: a program for one rank has neither collectives nor copies that replace
them, in any body. A mesh axis of size 1 adds nothing to a larger mesh. Usage: one_rank_test.py PRUN
"""
import pathlib
import re
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

SMALL = dict(layers=2, width=32, heads=2, context=16, batch=8)
BF16 = dict(dtype="bf16", micro=2)
COLLECTIVES = {"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier",
               "all_gather_v"}
MESSAGES = {"send", "recv", "put", "signal", "wait_signal"}
PLANS = [("ddp", SMALL), ("ddp", {**SMALL, **BF16}), ("zero1", SMALL), ("zero2", {**SMALL, "micro": 2}), ("zero3", SMALL),
         ("zero3", {**SMALL, **BF16}), ("fsdp", SMALL), ("megatron", {**SMALL, "tp": 1, "sequence": True}),
         ("1f1b", {**SMALL, "pp": 1}), ("interleaved", {**SMALL, "pp": 1, "chunks": 2}), ("zero_bubble", {**SMALL, "pp": 1}),
         ("one_sided", {**SMALL, "pp": 1}), ("ring_attention", {**SMALL, "cp": 1}), ("moe", {**SMALL, "ep": 1, "aux": 0.01}),
         ("3d", {**SMALL, "pp": 1, "tp": 1}), ("custom/bf16_gradients", {}), ("custom/local_sgd", {"every": 2}), ("collectives", {})]


def kinds(ranks, plan, *options, **settings):
    """Returns the kinds of all ops of a job, body by body."""
    text = program_text.run(PRUN, "dump", plan, "--nproc", ranks, "--device", "reference", *options, check=True, **settings).stdout
    return re.findall(r"^ +\d+  (\w+)", text, flags=re.M)


class OneRank(unittest.TestCase):
    def alone(self, plan, *options, copies=0, **settings):
        found = kinds(1, plan, *options, **settings)
        self.assertGreater(len(found), 0)
        self.assertEqual(set(found) & (COLLECTIVES | MESSAGES), set(), plan)
        self.assertEqual(found.count("copy"), copies, plan)

    def test_plans_have_no_collectives(self):
        for plan, settings in PLANS:
            with self.subTest(plan=plan, **settings):
                self.alone(f"plans/{plan}.lua", copies=6 if plan == "collectives" else 0, **settings)

    def test_the_bench_has_none(self):
        with tempfile.NamedTemporaryFile() as tokens:
            tokens.write(bytes(1 << 16))
            tokens.flush()
            self.alone("tools/bench/gpt2.lua", layers=2, width=32, heads=2, context=16, batch=8, vocab=256, data=tokens.name)

    def test_bodies_between_steps_have_none(self):
        for strategy in ("ddp", "zero3"):
            with self.subTest(strategy=strategy):
                self.alone("tests/parity/gpt.lua", "--check-replicas", 2, "--check-finite",
                           copies=1, strategy=strategy, eval=2, report=2, clip=1)  # one copy: the loss of an evaluation

    def test_strategies_compute_the_bits_of_a_plan_without_any(self):
        def bits(strategy, settings):
            rows = program_text.steps(PRUN, "tests/parity/gpt.lua", 1, strategy=strategy, steps=4, **settings)
            return [(row["loss"], row.get("grad_norm")) for row in rows]
        for settings in (dict(clip=1), dict(clip=1, micro=2), dict(dtype="bf16")):
            with self.subTest(**settings):
                self.assertEqual(bits("ddp", settings), bits("single", settings))
                self.assertEqual(bits("zero3", settings), bits("single", settings))

    def test_nothing_but_compute_is_on_a_second_stream(self):
        for plan, more in (("ddp", {}), ("zero1", {}), ("zero3", BF16), ("1f1b", dict(pp=1))):
            text = program_text.run(PRUN, "dump", f"plans/{plan}.lua", "--nproc", 1, check=True, **SMALL, **more).stdout
            self.assertEqual(set(re.findall(r"^  stream (.+)$", text, flags=re.M)), {"compute"}, plan)

    def test_sharding_over_one_rank_takes_no_more_memory_than_none(self):
        for dtype in ("f32", "bf16"):
            whole, sharded = (program_text.check(PRUN, f"plans/{plan}.lua", 1, dtype=dtype, micro=2, **SMALL)[0]["arena_bytes"]
                              for plan in ("ddp", "zero3"))
            self.assertEqual(whole, sharded, dtype)


class AnAxisOfOne(unittest.TestCase):
    def test_a_larger_mesh_talks_over_its_other_axes_only(self):
        for plan, ranks, settings in (("3d", 2, dict(pp=1, tp=1)), ("3d", 2, dict(pp=2, tp=1)), ("3d", 2, dict(pp=1, tp=2)),
                                      ("fsdp", 2, dict(replicate=1)), ("fsdp", 2, dict(replicate=2)), ("moe", 2, dict(ep=2)),
                                      ("gpt", 2, dict(zero=3)), ("gpt", 2, dict(tp=2, zero=3)), ("gpt", 2, dict(tp=2, zero=1))):
            with self.subTest(plan=plan, **settings):
                text = program_text.run(PRUN, "dump", f"plans/{plan}.lua", "--nproc", ranks, "--device", "reference", check=True,
                                        **SMALL, **settings).stdout
                sizes = dict(re.findall(r"(\w+)=(\d+)", re.search(r"^mesh +(.*)$", text, flags=re.M)[1]))
                axes = set(re.findall(r"  over (\w+)", text))
                self.assertNotEqual(axes, set())
                self.assertEqual({axis for axis in axes if sizes[axis] == "1"}, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
