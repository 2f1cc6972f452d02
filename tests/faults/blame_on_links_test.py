#!/usr/bin/env python3
"""Faults injected by the run itself (prun --chaos), with dozens of seeds: a healthy rank is never blamed.

Usage: blame_on_links_test.py PRUN [--seeds N]. Standard library only.
"""
import argparse
import itertools
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRUN, SEEDS = "", 3
SMALL = ("layers=2", "width=32", "heads=2", "context=16", "batch=8", "steps=1000000")


def run(plan, nproc, *options, settings=()):
    arguments = dict(each.split("=") for each in (*SMALL, *settings))
    words = [word for name in arguments for word in ("--set", f"{name}={arguments[name]}")]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([PRUN, f"plans/{plan}.lua", "--nproc", str(nproc), *words, *options, "--runs", folder], cwd=ROOT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, time.monotonic() - begin


def told(text):
    """Returns the first line of the failure; warnings may precede it."""
    found = re.search(r"(?m)^prun: (.*)\n  where: ", text)
    return found[1] if found else text


class Links(unittest.TestCase):
    def test_a_damaged_link_is_named_by_both_ends(self):
        for fault, unix, seed in itertools.product(("flip", "reset"), (0, 1), range(SEEDS)):
            rng = random.Random(f"{fault}{unix}{seed}")
            nproc = rng.choice([2, 3, 4])
            rank, peer = rng.sample(range(nproc), 2)
            spec = f"{fault}:rank={rank},peer={peer},within=30@step={rng.randint(2, 6)};seed={seed}"
            with self.subTest(spec=spec, nproc=nproc, unix=unix):
                code, text, took = run("zero3" if nproc != 3 else "ddp", nproc, "--transport", "socket", "--transport-options",
                                       f"unix={unix}", "--chaos", spec, settings=("batch=12",))
                self.assertEqual(code, 17, text)
                self.assertLess(took, 10)
                line = told(text)
                self.assertRegex(line, rf"\brank {rank}\b", text)
                self.assertRegex(line, rf"\brank {peer}\b", text)

    def test_a_stopped_rank_is_named_on_two_axes(self):
        """dp x tp and pp x tp: most ranks wait for a rank that itself only waits."""
        for transport, seed in itertools.product(("shm", "socket"), range(SEEDS)):
            rng = random.Random(f"{transport}{seed}")
            rank, pp = rng.randrange(4), rng.choice([1, 2])
            spec = f"stop:rank={rank},within=30@step={rng.randint(2, 6)};seed={seed}"
            with self.subTest(spec=spec, transport=transport, pp=pp):
                code, text, _ = run("3d", 4, "--transport", transport, "--timeout", "2", "--chaos", spec, settings=("tp=2", f"pp={pp}"))
                self.assertEqual(code, 11, text)
                self.assertRegex(told(text), rf"^rank {rank} .*\bis stopped\b", text)
                self.assertRegex(text, rf"(?m)^  where: +rank {rank} on ")
                self.assertRegex(text, r"(?m)^  evidence: (.*no progress|nothing has moved) for ")

    def test_a_rank_that_does_not_come_is_named(self):
        for transport in ("shm", "socket"):
            with self.subTest(transport=transport):
                code, text, _ = run("3d", 4, "--transport", transport, "--timeout", "2", "--chaos", "delay:rank=3,seconds=30@step=3",
                                    settings=("tp=2", "pp=1"))
                self.assertEqual(code, 11, text)
                self.assertRegex(told(text), r"^rank 3\b", text)


class Words(unittest.TestCase):
    def test_a_slip_is_answered(self):
        for spec, why in (("kil:rank=1", r"'kil' is not a fault \(did you mean 'kill'\?\)"), ("kill:rnk=1", r"'rnk' is nothing .* \(did you mean 'rank'\?\)"),
                          ("kill:rank=7", "'7' is not a rank; there are 2"), ("flip:rank=1,peer=1", "'1' is no peer of rank 1 of 2"),
                          ("kill:rank", "'rank' lacks a value"), ("kill@step=0", "'0' is not a whole number of at least 1")):
            code, text, _ = run("ddp", 2, "--chaos", spec)
            self.assertEqual(code, 2, text)
            self.assertTrue(re.search(f"prun: --chaos: {why}; as in kill:rank=3@step=7\n", text), text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prun")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments, rest = parser.parse_known_args()
    PRUN, SEEDS = str(pathlib.Path(arguments.prun).resolve()), arguments.seeds
    unittest.main(argv=[sys.argv[0], *rest])
