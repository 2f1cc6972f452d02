#!/usr/bin/env python3
"""The collectives of a tensor-parallel block are placed as in Megatron-LM, and those of backward overlap with the
weight gradients. Usage: tensor_parallel_test.py PRUN
"""
import pathlib
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

SIZES = dict(layers=2, width=16, context=8, batch=4, tp=2)


def collectives(plan, **settings):
    step = program_text.programs(PRUN, plan, 2, **SIZES, **settings)[0]
    return step["compute"], [op for op in step["tp"] if not op.reads[0].endswith(".partial")]


class TensorParallel(unittest.TestCase):
    def of_block(self, ops, phase):
        return [(op.kind, op.reads[0]) for op in ops if (op.phase, op.unit) == (phase, "block1")]

    def test_a_block_has_two_all_reduces_each_way(self):
        _, ops = collectives("plans/megatron.lua", heads=2, sequence=False)
        self.assertEqual(self.of_block(ops, "forward"),
                         [("all_reduce", "block1.attention.linear"), ("all_reduce", "block1.gelu.linear")])
        self.assertEqual(self.of_block(ops, "backward"), [("all_reduce", "d block1.ln2.enter"), ("all_reduce", "d block1.ln1.enter")])

    def test_with_sequence_each_becomes_a_gather_and_a_scatter(self):
        _, ops = collectives("plans/megatron.lua", heads=2, sequence=True)
        self.assertEqual([kind for kind, _ in self.of_block(ops, "forward")], ["all_gather", "reduce_scatter"] * 2)
        self.assertEqual([kind for kind, _ in self.of_block(ops, "backward")],
                         ["all_gather", "all_gather", "reduce_scatter"] * 2)  # dy, x again, dx

    def test_the_sum_of_dx_hides_behind_dw(self):
        for plan, settings in (("plans/megatron.lua", dict(heads=2, sequence=False)), ("plans/megatron.lua", dict(heads=2, sequence=True)),
                               ("tests/golden/llama_tp.lua", dict(sequence=False)), ("tests/golden/llama_tp.lua", dict(sequence=True))):
            with self.subTest(plan=plan, **settings):
                compute, ops = collectives(plan, **settings)
                sums = [op for op in ops if op.phase == "backward" and op.kind in ("all_reduce", "reduce_scatter")]
                self.assertEqual(len(sums), 2 * SIZES["layers"] + 1)  # the head's
                for op in sums:
                    later = compute[op.after["compute"] + 1:]
                    self.assertEqual(later[0].kind, "linear_dw", f"dw follows what the sum of {op.reads[0]} waits for")
                    user = next(i for i, other in enumerate(later) if other.after.get("tp", -1) >= op.index or op.writes[0] in other.reads)
                    self.assertTrue(all(other.kind == "linear_dw" for other in later[:user]), f"only dw before {op.writes[0]} is needed")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
