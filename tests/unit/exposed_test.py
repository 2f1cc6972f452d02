#!/usr/bin/env python3
"""tools/bench/exposed.py separates, in a trace, transfer time from waiting for late ranks."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))
import exposed  # noqa: E402


def slice_of(rank, stream, name, category, begin, end, step=0):
    return {"ph": "X", "pid": rank, "tid": stream, "ts": begin, "dur": end - begin, "name": name, "cat": category, "args": {"step": step}}


def arrow(number, rank, source, left, arrives):
    place = {"pid": rank, "id": number, "name": "edge", "cat": "flow"}
    return [{**place, "ph": "s", "tid": source, "ts": left}, {**place, "ph": "f", "tid": 0, "ts": arrives}]


class Exposed(unittest.TestCase):
    def test_a_wait_for_a_late_rank_is_no_transfer(self):
        # Rank 0 arrives at 100 µs, rank 1 at 160, both return at 180; rank 0 has waited for rank 1 since 120.
        events = [slice_of(0, 1, "reduce_scatter", "communication", 100, 180), slice_of(1, 1, "reduce_scatter", "communication", 160, 180),
                  slice_of(0, 1, "(wait for rank 1)", "wait", 100, 160), slice_of(0, 0, "(wait for edge)", "wait", 120, 180),
                  slice_of(0, 0, "norm2", "compute", 180, 190), *arrow(1, 0, 1, 179.999, 180)]
        del events[2]["args"]
        self.check(events, 0, comm_s=50e-6, exposed_s=30e-6, transfer_s=20e-6, exposed_transfer_s=10e-6)

    def test_waits_for_what_does_not_communicate_and_first_steps_do_not_count(self):
        events = [slice_of(0, 1, "all_gather", "communication", 0, 50), slice_of(0, 0, "(wait for edge)", "wait", 10, 50),
                  *arrow(1, 0, 1, 49.999, 50), slice_of(0, 1, "all_gather", "communication", 100, 140, 1),
                  slice_of(0, 0, "(wait for edge)", "wait", 100, 130, 1), slice_of(0, 0, "adamw", "compute", 130, 150, 1)]
        self.check(events, 1, comm_s=40e-6, exposed_s=0, transfer_s=40e-6, exposed_transfer_s=0)

    def check(self, events, skip, **expected):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.json")
            path.write_text(json.dumps({"traceEvents": events}))
            found = exposed.read(path, skip)
        self.assertEqual(found.keys(), expected.keys())
        for name, seconds in expected.items():
            self.assertAlmostEqual(found[name], seconds, places=12, msg=name)


if __name__ == "__main__":
    unittest.main()
