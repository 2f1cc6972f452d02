#!/usr/bin/env python3
"""Memory of zero3 per rank is what its closed form says, to the byte: parameters, gradients and optimizer state are 1/N of the
padded whole, plus (prefetch + 1) gathered units and (inflight + 1) unreduced gradients. Also traffic: 2 all-gathers and one
reduce-scatter a step, less the gathers that nobody reads. Usage: memory_test.py PRUN TOP
"""
import json
import subprocess
import sys
import unittest

PRUN, TOP = sys.argv[1], sys.argv[2]
LINE = 32  # elements: a cache line of the narrowest dtype, to which every tensor of a flat vector is padded


def up(value, step):
    return -(-value // step) * step


def units(layers, d, context, vocab):
    """Parameter sizes of each unit of a gpt."""
    block = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    return [[vocab * d, context * d]] + [block] * layers + [[d, d, d * vocab]]


def shard(unit, ranks):
    """A rank's piece, in elements. Only the last tensor (the first used) may end off a line."""
    return up(-(-(sum(up(t, LINE) for t in unit[1:]) + unit[0]) // ranks), LINE)


def check(plan, ranks, **settings):
    command = [PRUN, "check", f"{TOP}/plans/{plan}.lua", "--nproc", str(ranks), "--json"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["classes"][0]


class Memory(unittest.TestCase):
    # Widths that do not divide, and one rank, are part of it.
    CASES = [dict(layers=4, width=256, heads=4, context=128), dict(layers=3, width=60, heads=3, context=33), dict(layers=1, width=8, heads=2, context=7)]

    def test_zero3_to_the_byte(self):
        for case in self.CASES:
            for ranks in (1, 2, 3, 8):
                with self.subTest(ranks=ranks, **case):
                    got = check("zero3", ranks, batch=2 * ranks, **case)["roles"]
                    sizes = [shard(u, ranks) for u in units(case["layers"], case["width"], case["context"], 256)]
                    state = sum(sizes) * 4
                    largest = max(sizes) * ranks * 4
                    self.assertEqual(got["param"], state)
                    self.assertEqual(got["grad"], state)
                    self.assertEqual(got["optimizer"], 2 * state)
                    self.assertEqual(got["gathered"], 2 * largest)  # prefetch 1
                    self.assertEqual(got["reduce"], 2 * largest)    # inflight 1

    def test_zero3_is_an_eighth_of_single(self):
        case = self.CASES[0]
        single, split = (check(p, n, batch=8, **case)["roles"] for p, n in (("single", 1), ("zero3", 8)))
        for role in ("param", "grad", "optimizer"):
            self.assertLessEqual(split[role] * 8 - single[role], 6 * 8 * LINE * 4 * 2)
            self.assertGreaterEqual(split[role] * 8, single[role])

    def test_traffic(self):
        for case in self.CASES:
            for ranks in (2, 3, 8):
                with self.subTest(ranks=ranks, **case):
                    wire = check("zero3", ranks, batch=2 * ranks, **case)["wire_bytes_per_step"]["dp"]
                    sizes = [shard(u, ranks) * 4 for u in units(case["layers"], case["width"], case["context"], 256)]
                    # Forward gathers all; backward neither the head (kept) nor the embedding (not read); gradients all.
                    gathers = sum(sizes) + sum(sizes[1:-1])
                    scalars = 2 * 2 * (ranks - 1) / ranks * 4  # loss and gradient norm
                    self.assertEqual(wire, round((ranks - 1) * (gathers + sum(sizes)) + scalars))

    def test_ddp_all_reduces_gradients_once(self):
        case = self.CASES[0]
        wire = check("ddp", 8, batch=8, **case)["wire_bytes_per_step"]["dp"]
        grads = check("ddp", 8, batch=8, **case)["roles"]["grad"]
        self.assertAlmostEqual(wire, 2 * 7 / 8 * grads, delta=2 * 7 / 8 * 4 + 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
