#!/usr/bin/env python3
"""One fault at a time in a transport that otherwise works (faulty_plugin.cc), and the report of `prun conform`.

Usage: faulty_plugins_test.py PRUN PLUGINS. Standard library only.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRUN, PLUGINS = "", pathlib.Path()

# The item and case that detects the fault, and the reported behaviour.
FAULTS = {
    "leaks_in_open": ("load:OpeningAndClosingLeavesNothing", r"the plugin leaked memory: \d+ bytes more after 800 times of open and close, \d+ bytes each"),
    "leaks_peers": ("load:ConnectingAndClosingLeavesNothing", r"the plugin kept \d+ descriptors open after 40 times of connecting to two peers and closing"),
    "leaks_in_batch": ("messages:MessagesLeaveNothing", r"the plugin leaked memory: \d+ bytes more after 2000 times of sending and receiving two messages, \d+ bytes each"),
    "short_sizes": ("messages:MoreThanFourGiB", r"of a message of 4294971395 bytes, byte 4099 did not come: the plugin took sizes modulo 2\^32"),
    "short_lanes": ("messages:LanesAreWholeNumbers", r"what was sent on lane 1 came on lane 257: the plugin took lanes modulo 256"),
    "slow_abort": ("faults:EndsInTime", r"the plugin's abort returned after 3\d\d ms, 100 ms are allowed"),
    "late_abort": ("faults:EndsInTime", r"abort was ignored for 3\d\d ms by a receive under way, 100 ms are allowed"),
    "no_secret": ("secret", r"the plugin connected rank 0 to rank 1, whose job_secret is another"),
    "blames_rank_0": ("faults:ADeathIsBlamedOnTheDead", r"rank 1 died, the plugin blamed rank 0"),
    "any_size": ("misuse:SizesThatDifferAreAnError", r"64 bytes came where 72 were expected, and the plugin gave them as data"),
    "swaps_messages": ("messages:FirstInFirstOutPerLane", r"message 99 came as number 0"),
    "writes_beyond": ("guards", r"something was written outside the buffers"),
    "spins": ("idle:WaitingCostsNoCore", r"used \d+\.\d % of a core while it waited, 2 % are allowed"),
    "flips_bits": ("messages:EverySizeAndAlignment", r"a message of 4096 bytes, 0 bytes off, came changed"),
}


class Faulty(unittest.TestCase):
    def conform(self, fault, item):
        words = [PRUN, "conform", str(PLUGINS / "faulty.so"), item, "--json"]
        done = subprocess.run([*words, "--transport-options", f"fault={fault}"] if fault else words, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        return done.returncode, done.stdout

    def test_each_is_found(self):
        for fault, (item, words) in FAULTS.items():
            with self.subTest(fault=fault):
                status, text = self.conform(fault, item)
                row = json.loads(text)
                if row["result"] == "not claimed":
                    self.skipTest(f"{item} was not tried here")  # 4 GiB need 6
                self.assertEqual((status, row["result"]), (1, "failed"), text)
                self.assertRegex(row["text"], words)

    def test_without_a_fault_all_of_these_hold(self):
        for item, _ in set(FAULTS.values()):
            with self.subTest(item=item):
                status, text = self.conform("", item)
                self.assertEqual(status, 0, text)


class Replicas(unittest.TestCase):
    """A transport that flips a bit in 2 of 50 large messages: no op detects it, and replicas diverge."""

    def train(self, fault, *more):
        words = [PRUN, "plans/ddp.lua", "--nproc", "2", "--transport", "faulty",
                 "--transport-options", f"fault={fault}", *more]
        for setting in ("layers=1", "width=64", "heads=2", "context=16", "batch=4", "steps=100"):
            words += ["--set", setting]
        done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100,
                              cwd=ROOT, env={**os.environ, "PRUN_PLUGIN_PATH": str(PLUGINS)})
        return done.returncode, done.stdout

    def test_flipped_bits_end_the_job(self):
        status, text = self.train("flips_2_of_50", "--check-replicas", "10")
        self.assertEqual(status, 17, text)
        self.assertRegex(text, r"rank 1 holds another '[a-z0-9.]+' than rank 0 along dp after step \d*9: the program keeps them alike, so data was changed")

    def test_what_is_alike_passes_and_0_looks_never(self):
        self.assertEqual(self.train("slow_abort", "--check-replicas", "10")[0], 0)
        status, text = self.train("flips_2_of_50", "--check-replicas", "0")
        self.assertEqual(status, 0, text)


if __name__ == "__main__":
    PRUN, PLUGINS = str(pathlib.Path(sys.argv.pop(1)).resolve()), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
