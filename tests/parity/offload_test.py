#!/usr/bin/env python3
"""offload = "optimizer" changes only where the optimizer state is stored: losses are bitwise the same, and device
memory shrinks by exactly the state minus the slots. Usage: offload_test.py PRUN
"""
import pathlib
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import check, losses, steps  # noqa: E402

PLAN = "tests/parity/offload.lua"


class Offload(unittest.TestCase):
    def test_losses_are_equal_to_the_bit(self):
        for settings in (dict(strategy="zero3"), dict(strategy="zero3", dtype="bf16"), dict(strategy="zero1", clip=0),
                         dict(strategy="ddp", dtype="bf16")):
            with self.subTest(**settings):
                here = losses(PRUN, PLAN, 2, **settings)
                self.assertEqual(len(here), 6)
                self.assertEqual(here, losses(PRUN, PLAN, 2, offload="optimizer", piece="4 KiB", **settings))

    def test_evaluations_read_what_updates_on_the_host_leave(self):
        for strategy in ("zero1", "zero2", "zero3"):
            with self.subTest(strategy=strategy):
                settings = dict(strategy=strategy, dtype="bf16", evaluates="true")
                here, away = ([(step["loss"], step.get("eval_loss")) for step in steps(PRUN, PLAN, 2, **settings, **more)]
                              for more in ({}, dict(offload="optimizer", piece="4 KiB")))
                self.assertEqual(sum(evaluated is not None for _, evaluated in here), 3)
                self.assertEqual(here, away)

    def test_queue_devices_copy_in_order(self):
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype=dtype):
                here = losses(PRUN, PLAN, 2, dtype=dtype)
                self.assertEqual(here, losses(PRUN, PLAN, 2, "--device", "cpu-queue", offload="optimizer", piece="4 KiB", dtype=dtype))

    def test_the_device_has_slots_instead_of_state(self):
        for strategy in ("ddp", "zero1", "zero2", "zero3"):
            for ahead in (0, 1, 3):
                with self.subTest(strategy=strategy, ahead=ahead):
                    settings = dict(strategy=strategy, piece="8 KiB", ahead=ahead)
                    before = check(PRUN, PLAN, 2, **settings)[0]
                    after = check(PRUN, PLAN, 2, offload="optimizer", **settings)[0]
                    state, slots = before["roles"]["optimizer"], (ahead + 1) * 2 * 8192  # m and v
                    self.assertEqual(after["host_roles"]["optimizer"], state)
                    self.assertEqual(after["host_arena_bytes"], state)
                    self.assertEqual(after["roles"]["optimizer"], slots)
                    self.assertEqual(before["arena_bytes"] - after["arena_bytes"], state - slots)

    def test_masters_of_bf16_go_too(self):
        for strategy in ("ddp", "zero3"):
            with self.subTest(strategy=strategy):
                settings = dict(strategy=strategy, piece="8 KiB", dtype="bf16")
                before = check(PRUN, PLAN, 2, **settings)[0]
                after = check(PRUN, PLAN, 2, offload="optimizer", **settings)[0]
                state = before["roles"]["optimizer"]
                self.assertEqual(after["host_arena_bytes"], state + state // 2)
                self.assertEqual(after["roles"]["optimizer"], 3 * 3 * 8192)
                self.assertEqual(after["roles"]["param"], state // 4)  # bf16


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
