#!/usr/bin/env python3
"""The rates that a run applies, in its metrics, against the formulas of PyTorch and transformers; and wrong rates.
Usage: learning_rates_test.py PRUN
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

PRUN = pathlib.Path(sys.argv[1]).resolve()
STEPS = 100
PLAN = """local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.mlp { layers = 1, width = 4 },
  data = prun.data.random { batch = 2 },
  optimizer = prun.sgd { lr = %s },
  steps = 100,
}
"""


def trained(rate):
    """Returns exit code, standard error and the rate of each step."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "rate.lua").write_text(PLAN % rate)
        words = [PRUN, "rate.lua", "--quiet", "--metrics", "rows"]
        result = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
        rows = pathlib.Path(folder, "rows")
        text = rows.read_text() if rows.exists() else ""
    return result.returncode, result.stderr, [json.loads(row)["learning_rate"] for row in text.splitlines()]


def half_cosine(part):
    return 0.5 * (1 + math.cos(math.pi * min(1, part)))


def one_cycle(step):
    start, top, last = 1e-3 / 25, 0.3 * STEPS - 1, STEPS - 1
    if step <= top:
        return 1e-3 + (start - 1e-3) * half_cosine(step / top)
    return start / 1e4 + (1e-3 - start / 1e4) * half_cosine((step - top) / (last - top))


RATES = {
    "1e-3": lambda step: 1e-3,
    "prun.cosine { lr = 1e-3, warmup = 10, least = 1e-4 }":
        lambda step: 1e-3 * step / 10 if step < 10 else 1e-4 + 9e-4 * half_cosine((step - 10) / 90),
    "prun.linear { lr = 1e-3, warmup = 10, steps = 50 }":
        lambda step: 1e-3 * step / 10 if step < 10 else max(0, 1e-3 * (50 - step) / 40),
    "prun.warmup { lr = 1e-3, warmup = 20, zero_first = false }": lambda step: 1e-3 * min(1, (step + 1) / 20),
    "prun.wsd { lr = 1e-3, warmup = 10, decay = 30, least = 1e-4 }":
        lambda step: 1e-3 * min(1, step / 10) if step <= 70 else 1e-4 + 9e-4 * (100 - step) / 30,
    "prun.step_decay { lr = 1e-3, every = 30, factor = 0.5 }": lambda step: 1e-3 * 0.5 ** (step // 30),
    "prun.step_decay { lr = 1e-3, every = 4, factor = 0.5, warmup = 10 }":
        lambda step: 1e-3 * step / 10 if step < 10 else 1e-3 * 0.5 ** (step // 4),
    "prun.one_cycle { lr = 1e-3 }": one_cycle,
    "prun.inverse_root { lr = 1e-3, warmup = 25 }":
        lambda step: 1e-3 * step / 25 if step < 25 else 1e-3 * math.sqrt(25 / step),
    "{ { 0, 0 }, { 10, 1e-3 }, { 90, 1e-3 }, { 99, 1e-4 } }":
        lambda step: 1e-3 * step / 10 if step < 10 else 1e-3 if step <= 90 else 1e-4 + 9e-4 * (99 - step) / 9,
    "{ { 5, 1e-3 }, { 10, 2e-3 } }": lambda step: 1e-3 * min(2, max(1, step / 5)),
    "function(step) return 1e-3 * 0.99 ^ step end": lambda step: 1e-3 * 0.99 ** step,
}  # fmt: skip

WRONG = {
    "{ { 0, 1 }, { 0, 2 } }": "prun.sgd: 'lr' must have points with rising steps",
    "{ { 0, -1 } }": "prun.sgd: 'lr' must have points { step, rate }, a whole number and a number from 0",
    "{ { 0.5, 1 } }": "prun.sgd: 'lr' must have points { step, rate }, a whole number and a number from 0",
    "function(step) return step > 6 and 0 / 0 or 1 end":
        "the learning rate of step 7 must be a number from 0, not ",
    "function() end": "the learning rate of step 0 must be a number from 0, not nil",
    "prun.wsd { lr = 1, warmup = 10, decay = 95 }":
        "prun.wsd: 'warmup' and 'decay' together must be at most the 100 steps of the schedule, not 105",
    "prun.wsd { lr = 1 }": "prun.wsd needs 'decay'",
    "prun.one_cycle { lr = 1, rise = 1 }": "prun.one_cycle: 'rise' must be less than 1, not 1",
    "prun.PolynomialLR {}": "lr = function(step)",
    "prun.ReduceLROnPlateau {}": "prun has no learning rate that follows the loss yet",
}  # fmt: skip


class LearningRates(unittest.TestCase):
    def test_each_curve_has_the_rates_of_its_formula(self):
        for rate, expected in RATES.items():
            with self.subTest(rate):
                code, errors, rates = trained(rate)
                self.assertEqual((code, errors, len(rates)), (0, "", STEPS))
                for step, found in enumerate(rates):
                    self.assertAlmostEqual(found, expected(step), delta=1e-12, msg=f"step {step}")

    def test_wrong_rates_are_refused_at_their_line(self):
        for rate, message in WRONG.items():
            with self.subTest(rate):
                code, errors, rates = trained(rate)
                self.assertEqual((code, rates), (3, []), errors)
                self.assertRegex(errors, r"\Aprun: rate\.lua:6: ")
                self.assertIn(message, errors)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
