#!/usr/bin/env python3
"""nn.einsum and nn.softmax equal the same written with broadcasting and sums (einsum.lua).

Usage: einsum_test.py PRUN
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
PLAN = pathlib.Path(__file__).resolve().with_name("einsum.lua")


class Einsum(unittest.TestCase):
    def losses(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            metrics = pathlib.Path(folder, "metrics.jsonl")
            subprocess.run([PRUN, PLAN, "--nproc", "1", "--metrics", metrics, *options], cwd=folder, check=True,
                           capture_output=True)
            row = next(row for row in map(json.loads, metrics.read_text().splitlines()) if "loss" in row)
            return {name: value for name, value in row.items() if name.startswith(("einsum", "matmul")) or name.endswith("softmax")}

    def test_equal(self):
        found = self.losses()
        self.assertEqual(len(found), 16)
        self.assertLess(max(found.values()), 1e-12, found)

    def test_a_difference_is_seen(self):
        self.assertGreater(min(self.losses("--set", "wrong=true").values()), 1e-6)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
