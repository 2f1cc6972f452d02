#!/usr/bin/env python3
"""A plan with many microbatches at the command line: check counts all ops, dump prints the repetition, a run computes
the same losses as a program that lists every microbatch, and its trace has every op. Usage: repeat_command_test.py PRUN
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
SETTINGS = dict(pp=2, layers=2, width=16, heads=2, context=8, micro=40, batch=40, steps=2)
PLAN = ["plans/1f1b.lua", "--nproc", "2"] + [word for item in SETTINGS.items() for word in ("--set", "{}={}".format(*item))]
ALL = "--every-microbatch"


def prun(*words):
    done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stderr}")
    return done.stdout


def computed(*more):
    """Returns how many compute ops each rank's step executes, from --json."""
    classes = json.loads(prun("dump", *PLAN, "--json", *more))["classes"]
    return [len(program["bodies"][1]["streams"][0]["ops"]) for program in classes]


class Repeats(unittest.TestCase):
    def test_check_counts_what_runs(self):
        short, whole = (json.loads(prun("check", *PLAN, "--json", *more)) for more in ([], [ALL]))
        for one, other in zip(short["classes"], whole["classes"]):
            self.assertEqual(one["ops"], other["ops"])
            self.assertEqual(one["wire_bytes_per_step"], other["wire_bytes_per_step"])
        self.assertEqual(short["transports"], whole["transports"])

    def test_dump_says_what_repeats(self):
        text = prun("dump", *PLAN)
        self.assertRegex(text, r"(?m)^repeat   compute#\d+ to \d+.*: \d+ more times, each 1 microbatch further$")
        whole = prun("dump", *PLAN, ALL)
        self.assertNotIn("\nrepeat ", whole)
        self.assertLess(len(text), len(whole) / 2)
        self.assertEqual(computed(), computed(ALL))

    def test_a_pass_is_shown_once_where_the_first_period_does_not_recur(self):
        # Periods of one microbatch would give the gathers after the repetition other slots.
        text = prun("dump", "plans/zero3.lua", "--nproc", "2", "--set", "micro=40", "--set", "batch=80",
                    "--set", "layers=4", "--set", "width=16", "--set", "prefetch=2", "--after", "step")
        self.assertEqual(len(re.findall("(?m)^program ", text)), 1)

    def test_a_run_is_the_same(self):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for more in ([], [ALL]):
                at = pathlib.Path(folder) / f"run{len(found)}"
                prun(*PLAN, "--quiet", "--runs", at, "--metrics", f"{at}.jsonl", "--trace", f"{at}.json", *more)
                with open(f"{at}.jsonl") as lines:
                    losses = [json.loads(line).get("loss") for line in lines]
                with open(f"{at}.json") as trace:
                    spans = [event["name"] for event in json.load(trace)["traceEvents"]
                             if event.get("ph") == "X" and not event["name"].startswith("(wait")]
                found.append(([loss for loss in losses if loss is not None], sorted(spans)))
        self.assertEqual(len(found[0][0]), 2)
        self.assertEqual(found[0], found[1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
