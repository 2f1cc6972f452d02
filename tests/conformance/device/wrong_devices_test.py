#!/usr/bin/env python3
"""The device suite detects and names the fault of each wrong device, and accepts the correct ones.

Usage: wrong_devices_test.py PRUN WRONG.so. Standard library only.
"""
import os
import pathlib
import subprocess
import sys
import unittest

PRUN, WRONG = "", pathlib.Path()


def conform(*words, **environment):
    done = subprocess.run([PRUN, "conform", *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout


def lines_of(text):
    """Returns {item: text after it in its line}."""
    rows = [line.split(maxsplit=2) for line in text.splitlines()]
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0].isdigit()}


# Fault: the item and case that detects it, and the reported text.
WAYS = {
    "aligned": ("memory:IsAlignedAndApart", "bytes of the device's"),
    "messages": ("memory:ThatThereIsNotIsSaid", "no message, status 4"),
    "zero": ("copies:ZeroWritesWhatItIsAskedFor", "byte 0 of 1 at offset 0"),
    "now": ("copies:OfPinnedMemoryHappenInTheirTurn", "to.values()"),
    "blocks": ("streams:EnqueueingWaitsForNothing", "a call waited for the device's work: only stream_wait and close may"),
    "early": ("events:WaitForAllBeforeThem", "before the work in front of it, round 1"),
    "late": ("events:TellTheTimeBetweenThem", "milliseconds"),
    "twice": ("host-calls:ComeOnceEachAndInOrder", "order.size()"),
    "calls": ("host-calls:ComeOnAThreadOfTheDevices", "who"),
    "captured": ("capture:IsNotRunButLaunched", "run while it was captured"),
    "once": ("capture:IsNotRunButLaunched", "launches"),
    "kept": ("capture:IsNotRunButLaunched", "launches"),
    "edges": ("capture:KeepsEdgesAcrossStreams", "an edge between streams of the graph was lost"),
    "scale": ("ops:scale", "tensor 1 element 0"),
    "random": ("bits:scale", "tensor 1 element"),
    "crashes": ("ops:scale", "crashed with signal 11 (Segmentation fault)"),
    "hangs": ("streams:WaitEndsWithTheWork", "not finished after 1 s"),
    "closes": ("load:CloseWaitsForTheWorkAndFreesWhatIsLeft", "close did not wait"),
}
SECONDS = {"hangs": 1, "blocks": 6}


class Devices(unittest.TestCase):
    def test_wrong_ones_are_found(self):
        for way, (where, reason) in WAYS.items():
            with self.subTest(way=way):
                status, text = conform(WRONG, where, "--device-options", f"way={way}", "--timeout", SECONDS.get(way, 60))
                self.assertEqual(status, 1, text)
                line = lines_of(text)[where.split(":")[0]]
                self.assertTrue(line.startswith("FAILED"), text)
                self.assertIn(where.split(":")[1], line)
                self.assertIn(reason, line)

    def test_the_right_one_is_right(self):
        status, text = conform(WRONG, *("load memory copies streams events host-calls capture ops:scale ops:gelu bits:scale ranks threads errors".split()))
        self.assertEqual(status, 0, text)
        self.assertIn("it has no gelu", lines_of(text)["ops"])
        self.assertIn("   ok          Ops.Agrees/scale\n", text)
        self.assertIn("   not claimed Ops.Agrees/gelu\n", text)
        self.assertTrue(text.endswith("wrong: 12 of its items hold, 0 fail\n"), text)

    def test_one_that_cannot_be_opened(self):
        status, text = conform("--device", "wrong", "load", "errors", "--device-options", "way=none", PRUN_DEVICE_PATH=str(WRONG.parent))
        self.assertEqual(status, 1, text)
        self.assertIn("there is no option way=none", lines_of(text)["load"])
        self.assertEqual(lines_of(text)["errors"], "FAILED  not tried: it does not load")

    def test_words_that_are_wrong(self):
        for words, answer in ((["cpu"], "the device cpu is a part of prun, not behind prun/device.h: there is nothing to try"),
                              (["cpu-quoue"], "there is no transport and no device 'cpu-quoue' (did you mean 'cpu-queue'?)"),
                              (["cpu-queue", "errrors"], "there is no item 'errrors' (did you mean 'errors'?)"),
                              (["cpu-queue", "ops:gelo"], "the item ops has no case 'gelo' (did you mean 'gelu'?)"),
                              (["--device", "cpu-queue:3"], "there is no device cpu-queue:3: there is 1, from 0 on")):
            with self.subTest(words=words):
                status, text = conform(*words)
                self.assertEqual(status, 2, text)
                self.assertIn(answer, text)


if __name__ == "__main__":
    PRUN, WRONG = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
