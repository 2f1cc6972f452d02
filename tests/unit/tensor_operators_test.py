#!/usr/bin/env python3
"""a - b, -a and a / 2 in a model: losses that are known multiples of another's. tensor_operators_test.py PRUN"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PLAN = """
local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = function(batch) local x = batch.x return prun.losses.mean(prun.nn.linear("a", %s, 4, { init = "ones", bias = false })) end,
  data = prun.data.random { batch = 8, inputs = 4, outputs = 4 },
  optimizer = prun.sgd { lr = 0.0 },
  steps = 1,
}
"""


class Operators(unittest.TestCase):
    def loss(self, expression):
        with tempfile.TemporaryDirectory() as folder:
            plan, rows = pathlib.Path(folder, "plan.lua"), pathlib.Path(folder, "rows.jsonl")
            plan.write_text(PLAN % expression)
            done = subprocess.run([PRUN, plan, "--metrics", rows], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [row["loss"] for row in map(json.loads, rows.read_text().splitlines()) if "loss" in row][0]

    def test_losses_are_multiples(self):
        one = self.loss("x")
        self.assertNotEqual(one, 0)
        for expression, factor in (("-x", -1), ("x / 4", 0.25), ("x - x / 4", 0.75), ("-(x - x * 3) / 2", 1)):
            with self.subTest(expression):
                self.assertAlmostEqual(self.loss(expression) / one, factor, 6)


if __name__ == "__main__":
    PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
