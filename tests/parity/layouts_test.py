#!/usr/bin/env python3
"""Stages that a plan lists by units train as one rank does. Usage: layouts_test.py PRUN"""
import math
import pathlib
import re
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import losses, run  # noqa: E402

PLAN = "tests/parity/layouts.lua"


def trained(**settings):
    ranks = math.prod(settings.get(axis, usual) for axis, usual in (("pp", 4), ("dp", 1), ("tp", 1)))
    return losses(PRUN, PLAN, ranks, "--device", "reference", **settings)


class Layouts(unittest.TestCase):
    def same(self, found, expected):
        self.assertEqual(len(found), 3)
        for one, other in zip(found, expected, strict=True):
            self.assertLess(abs(one - other), 1e-12 * abs(other))

    def test_any_layout_trains_as_one_rank(self):
        alone = trained(pp=1, layout="embed block*6 head", micro=1)
        for settings in (
            dict(),
            dict(layout="embed block*3 | | ... | head"),                    # an empty stage forwards
            dict(layout="embed | block*6 head | |"),                        # the loss is not on the last rank
            dict(layout="embed block0 | block1 block2 block*2 | block5 | head", transfer="put"),
            dict(layout="embed | (block |)*6 head", chunks=2, schedule="interleaved"),
            dict(layout="embed | | block | block*2 | | block*3 | | head", chunks=2, schedule="interleaved", zero=3,
                 dp=2),
            dict(layout="embed | ... | head", chunks=2, schedule="zb_v", micro=8),
            dict(pp=2, layout="embed block*2 | block*4 head", schedule="zb_h1", zero=1, dp=2, tp=2),
            dict(layout="embed block*2 | ... | block | head", recompute=1, zero=2, dp=2),
        ):
            with self.subTest(**settings):
                self.same(trained(**settings), alone)

    def test_tied_weights_are_on_two_stages(self):
        alone = trained(pp=1, layout="...", micro=1, tied=True)
        for layout in ("embed | block*6 | | head", "embed block*2 | ... | | head"):
            self.same(trained(layout=layout, tied=True), alone)

    def test_stages_may_have_another_order_than_calls(self):
        alone = trained(pp=1, layout="...", micro=1, model="two")
        for settings in (dict(layout="left encoder | encoder | right decoder | decoder head"),
                         dict(layout="left encoder*2 | right | decoder*2 | head", zero=1, dp=2)):
            with self.subTest(**settings):
                self.same(trained(**settings, model="two"), alone)

    def test_check_proves_them(self):
        for ranks, settings in ((4, dict(layout="embed block*3 | | ... | head")),
                                (8, dict(pp=8, layers=24, layout="embed | block*6 | ... | block*2 | head"))):
            done = run(PRUN, "check", PLAN, "--nproc", ranks, "--device", "reference", "--prove", check=True,
                       **settings)
            self.assertRegex(done.stdout, r"(?m)^proven\b.*: equals one rank to")

    def test_a_reduced_plan_recomputes_like_stages(self):
        """A proof has fewer stages; those that are as far along the pipeline recompute."""
        for stage in (1, 14):
            done = run(PRUN, "check", PLAN, "--nproc", 16, "--device", "reference", "--prove", check=True, pp=16,
                       layers=28, layout="embed | ... | head", recompute=stage)
            self.assertRegex(done.stdout, r"(?m)^proven\b.*: equals one rank to .* \(pp=4 x")

    def test_one_stage_recomputes(self):
        """Only the units of that stage run their forward again."""
        again = {}
        for stage in (-1, 0, 1):
            text = run(PRUN, "dump", PLAN, "--nproc", 2, "--device", "reference", check=True, pp=2, layers=4,
                       layout="embed block*2 | block*2 head", recompute=stage).stdout
            again[stage] = [len(re.findall(rf"(?m)^.*\bgelu +{block}\.", text)) for block in ("block0", "block2")]
        plain = again[-1]
        self.assertGreater(min(plain), 0)
        self.assertEqual(again[0], [2 * plain[0], plain[1]])
        self.assertEqual(again[1], [plain[0], 2 * plain[1]])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
