#!/usr/bin/env python3
"""A job with many more ranks than cores starts, trains and ends, and auto skips shm if there are too many pairs."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PLAN = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/bench/idle.lua"


class ManyRanks(unittest.TestCase):
    def test_they_train(self):
        with tempfile.TemporaryDirectory() as folder:
            metrics = pathlib.Path(folder, "metrics.jsonl")
            done = subprocess.run([PRUN, PLAN, "--nproc", RANKS, "--metrics", metrics, "--timeout", "300"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            self.assertEqual([json.loads(line)["step"] for line in metrics.read_text().splitlines()], [1, 2, 3])

    def test_shm_is_passed_over_where_its_pairs_take_the_memory(self):
        done = subprocess.run([PRUN, "plugins", "--explain", "--nproc", "100000"], capture_output=True, text=True)
        self.assertRegex(done.stdout, r"\n    shm +would take about [\d.]+ TiB to map the memory of 100000 ranks in each of them, and this machine has")


if __name__ == "__main__":
    PRUN, RANKS = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
