#!/usr/bin/env python3
"""Every schedule, for any number of ranks, microbatches and chunks: each microbatch passes through each layer once in
forward, then in backward; the verifier accepts it (dump verifies); and the number of microbatches in flight is that of
lua/prun/schedules/README.md.
Usage: schedules_test.py PRUN
"""
import collections
import pathlib
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

PLAN = "tests/parity/pipeline.lua"


def compute(schedule, pp, micro, chunks=1):
    """Returns the compute ops of each rank; a stage is one layer."""
    settings = dict(schedule=schedule, pp=pp, micro=micro, batch=micro, width=4, layers=pp * chunks, chunks=chunks)
    return [step["compute"] for step in program_text.programs(PRUN, PLAN, pp, **settings)]


def peak_in_flight(ops):
    """Returns the largest number of chunks of microbatches whose forward has run and whose backward has not ended."""
    live, peak, last = set(), 0, {}
    for op in ops:
        if op.phase == "backward":
            last[op.unit, op.microbatch] = op.index
    for op in ops:
        key = (op.unit, op.microbatch)
        if op.phase == "forward" and op.kind == "linear":
            live.add(key)
            peak = max(peak, len(live))
        elif op.phase == "backward" and last[key] == op.index:
            live.remove(key)
    return peak


class Schedules(unittest.TestCase):
    CHUNKS = {"gpipe": (1,), "1f1b": (1,), "zb_h1": (1,), "interleaved": (1, 2, 3), "zb_v": (2,), "dualpipe_v": (2,)}

    def test_each_turn_is_there_once(self):
        for schedule, all_chunks in self.CHUNKS.items():
            for pp in (1, 2, 3, 4):
                for micro in (1, 2, 3, 5, 8):  # fewer than ranks, not a multiple of them, fewer than zb_v's pattern
                    for chunks in all_chunks:
                        with self.subTest(schedule=schedule, pp=pp, micro=micro, chunks=chunks):
                            self.once(compute(schedule, pp, micro, chunks), pp * chunks, micro)

    def once(self, ranks, layers, micro):
        for ops in ranks:
            at = collections.defaultdict(list)
            for op in ops:
                if op.kind in ("linear", "linear_dx", "linear_dw"):
                    at[op.kind, op.unit, max(op.microbatch, 0)].append(op.index)
            units = {unit for _, unit, _ in at}
            self.assertEqual(len(units), layers // len(ranks))
            self.assertEqual(len(at), len(units) * micro * 3 - ("layer0" in units) * micro)  # the input gradient of layer0 is not computed
            for (kind, unit, microbatch), indices in at.items():
                self.assertEqual(len(indices), 1, (kind, unit, microbatch))
                self.assertGreaterEqual(indices[0], at["linear", unit, microbatch][0])

    def test_as_many_in_flight_as_the_table_says(self):
        table = {("gpipe", 1): lambda p, m, r: m, ("1f1b", 1): lambda p, m, r: p - r, ("zb_h1", 1): lambda p, m, r: p,
                 ("zb_v", 2): lambda p, m, r: 2 * p, ("dualpipe_v", 2): lambda p, m, r: 2 * p + 1,
                 ("interleaved", 2): lambda p, m, r: p + 2 * (p - r - 1) + 1,
                 ("interleaved", 3): lambda p, m, r: 2 * p + 2 * (p - r - 1) + 1}
        for (schedule, chunks), expected in table.items():
            for p in (2, 3, 4):
                for m in (2 * p, 3 * p + 1):
                    with self.subTest(schedule=schedule, p=p, m=m, chunks=chunks):
                        found = [peak_in_flight(ops) for ops in compute(schedule, p, m, chunks)]
                        self.assertEqual(found, [expected(p, m, r) for r in range(p)])

    def test_activation_memory_does_not_grow_with_microbatches(self):
        for schedule, chunks in (("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2), ("gpipe", 1)):
            for pp in (2, 3):
                found = []
                for micro in (4 * pp, 6 * pp):
                    classes = program_text.check(PRUN, PLAN, pp, schedule=schedule, pp=pp, micro=micro, batch=16 * micro, width=64,
                                                 layers=2 * pp, chunks=chunks)
                    found.append([rank["roles"]["activation"] for rank in classes])
                with self.subTest(schedule=schedule, pp=pp):
                    if schedule == "gpipe":
                        self.assertTrue(all(few < many for few, many in zip(*found)))
                    else:
                        self.assertEqual(*found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
