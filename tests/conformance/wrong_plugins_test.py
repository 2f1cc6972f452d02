#!/usr/bin/env python3
"""Transports that fail in operation: each job ends within its deadline, with a message that names plugin, rank and
reason.

Usage: wrong_plugins_test.py PRUN PLUGINS. Standard library only.
"""
import os
import pathlib
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRUN, PLUGINS = "", pathlib.Path()
TIMEOUT_S = 2  # prun's --timeout; a job may take that plus delays of a busy machine
SMALL = ["--set", "layers=1", "--set", "width=16", "--set", "heads=2", "--set", "context=8", "--set", "batch=4", "--set", "steps=1"]


def prun(*words, folder="wrong", limit=None):
    environment = {**os.environ, "PRUN_PLUGIN_PATH": str(PLUGINS / folder)}
    if limit:
        words = ("-c", f'ulimit -n {limit}; exec "$0" "$@"', PRUN, *words)
    begin = time.monotonic()
    done = subprocess.run([("bash" if limit else PRUN), *map(str, words)], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, env=environment, cwd=ROOT)
    return done.returncode, done.stdout, time.monotonic() - begin


def train(transport, way="", **more):
    return prun("plans/ddp.lua", "--nproc", 2, "--transport", transport, "--timeout", TIMEOUT_S,
                *(["--transport-options", way] if way else []), *SMALL, **more)


# Fault: exit code, first line (of any rank), further text.
WAYS = {
    "crashes_in_open": (10, r"rank \d was killed by SIGSEGV", r"op: +joining: opening transport wrong \(.*/wrong\.so\)"),
    "blocks_in_open": (11, r"rank \d: transport wrong \(.*/wrong\.so\): its function 'open' has not returned for 1\.5 s; 10 ms are allowed", r"where:"),
    "no_context": (14, r"rank \d: opening wrong: open returned no context", r"where:"),
    "long_address": (14, r"rank \d: making an address over wrong: it has more than the 4096 bytes", r"where:"),
    "writes_beyond": (14, r"rank \d: making an address over wrong: it has more than the 4096 bytes", r"where:"),
    "unreachable": (14, r"rank \d: connecting over wrong: after 2\.0 s still waiting for rank 1 \(no route\)", r"where:"),
    "refused": (14, r"rank \d: connecting over wrong: rank 1: connection refused", r"where:"),
    "no_request": (14, r"rank \d: .* over wrong: batch returned no request", r"op: "),
    "blocks_in_test": (11, r"rank \d: transport wrong \(.*/wrong\.so\): its function 'test' has not returned for 1\.5 s", r"where:"),
    "crashes_in_test": (10, r"rank \d was killed by SIGSEGV", r"op: "),
    "slow_in_test": (11, r"rank \d: .*no progress for 2\.0 s, waiting for rank \d", r"op: "),
    "wrong_status": (14, r"rank \d: .* over wrong: test returned status 77, which there is not", r"op: "),
    "wrong_culprit": (14, r"rank \d: .* over wrong: test blames rank 4711 of 2: it went away", r"op: "),
    "endless_message": (14, r"rank \d: .* over wrong: x{200,}", r"op: "),
}


class Wrong(unittest.TestCase):
    def test_at_work(self):
        for way, (code, first, more) in WAYS.items():
            with self.subTest(way=way):
                status, text, seconds = train("wrong", way)
                self.assertEqual(status, code, text)
                self.assertRegex(text, rf"prun: {first}")
                self.assertRegex(text, more)
                self.assertRegex(text, r"where: +rank \d on ")
                self.assertLess(seconds, TIMEOUT_S + 10, text)

    def test_on_one_rank_which_needs_none(self):
        for way in ("crashes_in_open", "blocks_in_open", "no_context"):
            with self.subTest(way=way):
                status, text, _ = prun("plans/ddp.lua", "--transport", "wrong", "--transport-options", way, "--timeout", TIMEOUT_S, *SMALL)
                self.assertEqual(status, WAYS[way][0], text)
                self.assertRegex(text, rf"prun: {WAYS[way][1]}")

    def test_when_loaded(self):
        status, text, _ = train("crash", folder="crash")
        self.assertEqual(status, 10, text)
        self.assertRegex(text, r"prun: rank \d was killed by SIGSEGV")
        self.assertRegex(text, r"op: +joining: loading .*/crash/crash\.so")

    def test_refused_by_a_running_job(self):
        status, text, _ = train("missing", folder="bad")
        self.assertEqual(status, 14, text)
        self.assertRegex(text, r"prun: rank \d: .*/bad/missing\.so: the mandatory function 'batch' is missing")

    def test_a_list_of_plugins_survives_one_that_crashes(self):
        status, text, _ = prun("plugins", folder="crash")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"crash +cannot be loaded: .*/crash\.so: it crashed with signal 11 \(Segmentation fault\) when it was loaded")

    def test_in_the_suite(self):
        for item, way, reason in (("load:OpeningAndClosingLeavesNothing", "crashes_in_open", "rank 0 was killed by SIGSEGV"),
                                  ("messages", "wrong_status", "test returned status 77, which there is not"),
                                  ("messages", "no_request", "batch returned no request"),
                                  ("guards", "blocks_in_test", "its function 'test' has not returned for")):
            with self.subTest(way=way):
                status, text, _ = prun("conform", "wrong", item, "--transport-options", way)
                self.assertEqual(status, 1, text)
                self.assertIn(reason, next(line for line in text.splitlines() if "FAILED" in line and line.split()[1] == item.split(":")[0]))

    def test_few_descriptors(self):
        """Eight ranks with 64 descriptors each: it works, or the rank that lacks one reports it."""
        for transport in ("shm", "socket"):
            with self.subTest(transport=transport):
                status, text, seconds = prun("plans/ddp.lua", "--nproc", 8, "--transport", transport, "--timeout", 5,
                                             *SMALL[:-4], "--set", "batch=8", "--set", "steps=1", limit=64)
                if status != 0:
                    self.assertRegex(text, rf"prun: .*(rank \d|{transport}).*([Tt]oo many open files|descriptors)")
                self.assertLess(seconds, 20)


if __name__ == "__main__":
    PRUN, PLUGINS = str(pathlib.Path(sys.argv.pop(1)).resolve()), pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
