#!/usr/bin/env python3
"""Bytes on the wire and sharded memory of the model-parallel strategies (tensor, sequence, pipeline, context and expert
parallelism) equal the formulas of lua/prun/strategies/README.md exactly. Usage: wire_test.py PRUN
"""
import pathlib
import re
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import check, programs, run, sent  # noqa: E402

L, H, S, B, V = 3, 128, 16, 4, 256  # layers, width, tokens per sample, samples, vocabulary
SIZES = dict(layers=L, width=H, heads=4, context=S)


def all_reduce(elements, ranks):
    return 2 * (ranks - 1) / ranks * elements * 4


def parameters(tp=1):
    """Returns the parameters of a gpt on one tensor-parallel rank. Widths divide, so nothing is padded."""
    block = 6 * H + (12 * H * H + 7 * H) // tp
    return V * H // tp + S * H + L * block + 2 * H + H * V // tp


class Wire(unittest.TestCase):
    def test_tensor_parallel(self):
        for tp in (2, 4):
            for dp in (1, 2):
                with self.subTest(tp=tp, dp=dp):
                    got = check(PRUN, "plans/megatron.lua", tp * dp, batch=B * dp, tp=tp, sequence=False, **SIZES)[0]
                    # Four all-reduces per layer, those of the embedding and the head's dx, three of cross-entropy, and
                    # the norm in f64.
                    elements = (4 * L + 2) * B * S * H + 3 * B * S + 2
                    self.assertEqual(got["wire_bytes_per_step"]["tp"], round(all_reduce(elements, tp)))
                    self.assertEqual(got["wire_bytes_per_step"]["dp"], round(all_reduce(parameters(tp), dp) + all_reduce(1, dp)))
                    for role, times in (("param", 1), ("grad", 1), ("optimizer", 2)):
                        self.assertEqual(got["roles"][role], times * 4 * parameters(tp))

    def test_sequence_parallel_gathers_again_in_backward_and_sums_what_tokens_share(self):
        for tp in (2, 4):
            with self.subTest(tp=tp):
                whole, split = (check(PRUN, "plans/megatron.lua", tp, batch=B, tp=tp, sequence=sequence, **SIZES)[0]
                                for sequence in (False, True))
                shared = L * 6 * H + 2 * H + S * H  # norms, biases of row layers, positions: each rank has other tokens
                more = split["wire_bytes_per_step"]["tp"] - whole["wire_bytes_per_step"]["tp"]
                gathers = (2 * L + 1) * all_reduce(B * S * H, tp) / 2  # inputs of column layers, gathered again in backward
                self.assertEqual(more, round(all_reduce(shared, tp) + gathers))
                self.assertLess(split["roles"]["activation"], whole["roles"]["activation"])

    def test_pipeline_sends_an_activation_each_way_over_each_border(self):
        for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("zb_h1", 1), ("interleaved", 2), ("interleaved", 3), ("zb_v", 2)):
            for p in (2, 3, 4):
                for m in (1, 3, 8):
                    with self.subTest(schedule=schedule, chunks=chunks, p=p, m=m):
                        got = check(PRUN, "tests/parity/pipeline.lua", p, schedule=schedule, pp=p, chunks=chunks, layers=p * chunks,
                                    micro=m, batch=B * m, width=H)
                        stages = [2 * p - 1 - r if chunk == 1 and schedule == "zb_v" else chunk * p + r
                                  for r in range(p) for chunk in range(chunks)]
                        owner = {stage: n // chunks for n, stage in enumerate(stages)}
                        borders = [0] * p  # stage borders that each rank sends across
                        for stage in range(p * chunks - 1):
                            if owner[stage] != owner[stage + 1]:
                                borders[owner[stage]] += 1      # forward
                                borders[owner[stage + 1]] += 1  # backward
                        self.assertEqual([rank["wire_bytes_per_step"]["pp"] for rank in got],
                                         [round(count * m * B * H * 4 + all_reduce(1, p)) for count in borders])

    def test_interleaved_sends_as_often_as_it_has_chunks(self):
        total = [sum(rank["wire_bytes_per_step"]["pp"] - 4 for rank in
                     check(PRUN, "tests/parity/pipeline.lua", 2, schedule="interleaved", pp=2, chunks=v, layers=12, width=H))
                 for v in (1, 2, 3)]
        self.assertEqual([t // total[0] for t in total], [1, 3, 5])  # p·v - 1 borders

    def test_context_parallel_passes_keys_and_values_round(self):
        for dtype, wide in (("f32", 4), ("bf16", 2)):
            for cp in (2, 4):
                with self.subTest(dtype=dtype, cp=cp):
                    got = check(PRUN, "plans/ring_attention.lua", cp, batch=B, cp=cp, dtype=dtype, **SIZES)[0]
                    kv = B * S // cp * 2 * H
                    ring = L * ((cp - 1) * kv * wide + (cp - 1) * kv * wide + cp * kv * 4)  # gradients in f32
                    rest = all_reduce(parameters(), cp) + all_reduce(1, cp)                 # gradients, loss
                    self.assertEqual(got["wire_bytes_per_step"]["cp"], round(ring + rest))

    def test_expert_parallel_moves_each_choice_there_and_back_twice(self):
        for ep in (2, 4):
            for choices, capacity in ((2, "inf"), (1, "1.5")):
                with self.subTest(ep=ep, choices=choices, capacity=capacity):
                    experts, tokens = 8, B * S
                    settings = dict(batch=B * ep, ep=ep, experts=experts, choices=choices, capacity=capacity, **SIZES)
                    step = programs(PRUN, "plans/moe.lua", ep, **settings)[0]
                    counts = [op for op in step["ep"] if op.kind == "all_to_all" and op.elements == experts]
                    self.assertEqual([op.unit for op in counts], [f"block{i}" for i in range(L)])
                    moved = [op for op in step["ep"] if op.kind == "all_to_all" and op not in counts]
                    self.assertEqual([(op.phase, op.unit) for op in moved],
                                     [("forward", f"block{i}") for i in range(L) for _ in range(2)] +
                                     [("backward", f"block{i}") for i in reversed(range(L)) for _ in range(2)])
                    room = tokens if capacity == "inf" else -(-int(float(capacity) * choices * tokens) // experts)
                    self.assertEqual({op.elements for op in moved}, {experts * room * H})
                    self.assertEqual(sent(moved, ep), 4 * L * (ep - 1) / ep * experts * room * H * 4)

    def test_dropless_experts_send_rows_with_a_token_only(self):
        """Each token goes to all experts, so that each has B·S tokens of a rank: three quarters of them in round 0, the
        rest in round 1, whose rows go there and back once more in backward."""
        settings = dict(batch=2 * B, ep=2, experts=4, choices=4, capacity=0.75, dropless=True, steps=1, dtype="f32", **SIZES)
        step = programs(PRUN, "plans/moe.lua", 2, **settings)[0]
        rows = [op for op in step["ep"] if op.kind == "exchange_rows"]
        self.assertEqual([len([op for op in rows if op.phase == phase]) for phase in ("forward", "backward")], [4 * L, 6 * L])
        self.assertFalse([op for op in step["ep"] if op.kind == "all_to_all"])
        others = sent([op for ops in step.values() for op in ops if op.axis == "ep" and op.kind != "exchange_rows"], 2)
        text = run(PRUN, "plans/moe.lua", "--nproc", 2, check=True, **settings).stdout
        number, unit = re.search(r"(?m)^sent +(\S+) (\w+) a rank and step", text).groups()
        done = float(number) * {"KiB": 1024, "MiB": 1 << 20}[unit]
        routed = L * 2 * B * S * (4 * 0.75 + 6 * 0.25) * H * 4  # two of the four experts are on the other rank
        self.assertLess(abs(done - others - routed), 0.02 * routed)

    def test_rounds_add_no_memory(self):
        """Any number of rounds takes the memory of one, which drops tokens, and at most a tensor of tokens for a sum."""
        for capacity, micro in ((1.25, 1), (0.5, 1), (0.25, 1), (0.25, 2)):
            for ep in (1, 2):
                with self.subTest(capacity=capacity, micro=micro, ep=ep):
                    settings = dict(batch=B * ep, ep=ep, experts=8, capacity=capacity, micro=micro, **SIZES)
                    one, rounds = (check(PRUN, "plans/moe.lua", ep, dropless=dropless, **settings)[0]["roles"]
                                   for dropless in (False, True))
                    self.assertLessEqual(rounds["activation"], one["activation"] + B * S * H * 4 // micro + 4096)
                    for role in ("grad", "param", "optimizer"):
                        self.assertEqual(rounds[role], one[role])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
