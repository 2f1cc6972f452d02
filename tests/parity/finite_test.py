#!/usr/bin/env python3
"""--check-finite names the op that produces the first NaN or infinity, on the rank that produces it, no matter which
ranks receive it. It reports nothing for valid plans and changes no loss, on queue devices too.
Usage: finite_test.py PRUN
"""
import pathlib
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

DEVICES = ("cpu", "cpu-queue")


def run(plan, *options, **settings):
    return program_text.run(PRUN, plan, "--nproc", 2, *options, **settings)


def losses(plan, *options, **settings):
    return program_text.losses(PRUN, plan, 2, *options, **settings)


class Finite(unittest.TestCase):
    def test_the_op_is_named_with_its_reader(self):
        for device in DEVICES:
            with self.subTest(device=device):
                done = run("tests/parity/overflow.lua", "--check-finite", "--device", device)
                self.assertEqual(done.returncode, 20, done.stderr)
                self.assertRegex(done.stderr, r"prun: rank [01]: linear of layer\d \(forward\) at lua/prun/models/mlp.lua:\d+ makes "
                                              r"an? (NaN|infinity) in 'layer\d.linear' at step 2; \w+ of layer\d \(forward\) at \S+ reads it\n")
                self.assertRegex(done.stderr, r"  op:       linear  layer\d\S+, ")

    def test_without_the_option_training_goes_on(self):
        done = run("tests/parity/overflow.lua")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_rank_that_made_it_is_named(self):
        for device in DEVICES:
            with self.subTest(device=device):
                done = run("tests/parity/overflow_elsewhere.lua", "--check-finite", "--device", device)
                self.assertEqual(done.returncode, 20, done.stderr)
                self.assertRegex(done.stderr, r"prun: rank 1: fill at tests/parity/overflow_elsewhere.lua:\d+ makes an infinity in "
                                              r"'full2' at step 1; all_reduce at \S+ reads it\n")

    def test_what_only_the_root_gets_is_looked_at_there(self):
        for device in DEVICES:
            with self.subTest(device=device):
                done = run("tests/parity/overflow_at_root.lua", "--check-finite", "--device", device)
                self.assertEqual(done.returncode, 20, done.stderr)
                self.assertRegex(done.stderr, r"prun: rank 1: reduce at tests/parity/overflow_at_root.lua:\d+ brings an infinity in 'full' at step 1\n")

    def test_what_nothing_has_written_is_not_looked_at(self):
        for device in DEVICES:
            with self.subTest(device=device):
                done = run("plans/collectives.lua", "--check-finite", "--device", device)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_right_plans_are_finite(self):
        small = dict(layers=2, width=16, heads=2, context=8, batch=8, steps=2)
        for plan, device in (("ring_attention", "cpu"), ("moe", "cpu"), ("megatron", "cpu"), ("one_sided", "cpu"),
                             ("zero3", "cpu"), ("zero3", "cpu-queue")):
            with self.subTest(plan=plan, device=device):
                plain = losses(f"plans/{plan}.lua", "--device", device, **small)
                self.assertEqual(plain, losses(f"plans/{plan}.lua", "--device", device, "--check-finite", **small))

    def test_state_on_the_host_is_looked_at_on_the_device(self):
        done = run("tests/parity/offload.lua", "--check-finite", offload="optimizer")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
