#!/usr/bin/env python3
"""`prun bench`: rows, comparison of two transports, --explain, wrong results, dying ranks. Checks no times.

Usage: bench_command_test.py PRUN PLUGINS
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

PRUN, PLUGINS = "", pathlib.Path()
QUICK = ["--samples", "1", "--iters", "1"]


def bench(*words):
    done = subprocess.run([PRUN, "bench", *map(str, words)], text=True, capture_output=True, timeout=250)
    return done.returncode, done.stdout, done.stderr


def rows(*words):
    status, out, err = bench(*words, *QUICK, "--json")
    if status != 0:
        raise AssertionError(f"exit {status}: {err}")
    return [json.loads(line) for line in out.splitlines()]


class Rows(unittest.TestCase):
    def test_one_object_a_row(self):
        found = rows("all_reduce", "--nproc", 4, "--transport", "shm", "--bytes", "4,1K,4M")
        self.assertEqual([row["bytes"] for row in found], [4, 1024, 4 << 20])
        for row in found:
            self.assertEqual((row["op"], row["transport"], row["ranks"], row["dtype"], row["redop"], row["root"]),
                             ("all_reduce", "shm", 4, "f32", "sum", None))
            for place in (row, row["in_place"]):
                self.assertEqual(place["wrong"], 0)
                self.assertEqual((place["samples"], place["calls"]), (1, 1))
                self.assertGreater(place["time_us"], 0)
                self.assertLessEqual(place["min_us"], place["time_us"])
                self.assertLessEqual(place["time_us"], place["max_us"])
                self.assertAlmostEqual(place["algbw_gbs"], row["bytes"] / place["time_us"] / 1e3, delta=place["algbw_gbs"] / 1e4)
                self.assertAlmostEqual(place["busbw_gbs"], 1.5 * place["algbw_gbs"], delta=place["algbw_gbs"] / 1e4)

    def test_every_operation_type_and_reduction_is_right(self):
        for transport in ("shm", "socket", PLUGINS / "pipe.so"):
            found = rows("all,ping_pong", "--nproc", "2,5", "--transport", transport, "--bytes", "4,70K", "--root", 1)
            self.assertEqual(len({(row["op"], row["ranks"]) for row in found}), 2 * 11)
            self.assertEqual({row["wrong"] for row in found}, {0})
            self.assertEqual({row["root"] for row in found if row["op"] in ("broadcast", "reduce", "gather", "scatter")}, {1})
            in_place = {row["op"] for row in found if row["in_place"]}
            self.assertEqual(in_place, {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"})
        found = rows("all_reduce,all_to_all", "--nproc", 3, "--transport", "shm", "--bytes", "1000", "--dtype", "all", "--redop", "all")
        self.assertEqual(len(found), 8 * 5 + 8)
        self.assertEqual({(row["wrong"], row["in_place"]["wrong"] if row["in_place"] else 0) for row in found}, {(0, 0)})

    def test_ranges(self):
        def sizes(text, *more):
            return [row["bytes"] for row in rows("broadcast", "--transport", "shm", "--check", 0, "--bytes", text, *more)]
        self.assertEqual(sizes("8:256:4"), [8, 32, 128])
        self.assertEqual(sizes("1K:3K:+1KiB,16"), [1024, 2048, 3072, 16])
        self.assertEqual(sizes("64:512"), [64, 128, 256, 512])
        # One element per rank yields one row.
        self.assertEqual([row["bytes"] for row in rows("all_gather", "--nproc", 4, "--transport", "shm", "--bytes", "1:64:2")], [16, 32, 64])

    def test_two_transports(self):
        found = rows("all_reduce", "--nproc", 3, "--transport", "shm", "--vs", "socket", "--vs-options", "unix=0", "--bytes", "4,64K")
        self.assertEqual(len(found), 2)
        for row in found:
            self.assertEqual((row["transport"], row["vs"]["transport"], row["vs"]["transport_options"]), ("shm", "socket", "unix=0"))
            self.assertEqual((row["wrong"], row["vs"]["wrong"]), (0, 0))
            self.assertAlmostEqual(row["ratio"], row["vs"]["time_us"] / row["time_us"], delta=row["ratio"] / 1e3)
        # One transport, two algorithms.
        row, = rows("all_reduce", "--nproc", 3, "--transport", "shm", "--vs-algorithm", "ring", "--bytes", "64K")
        self.assertEqual((row["algorithm"], row["vs"]["algorithm"], row["vs"]["transport"]), ("native", "ring", "shm"))

    def test_explains(self):
        small, large = rows("all_reduce", "--nproc", 2, "--transport", "socket", "--bytes", "4,64M", "--explain", "--place", "in")
        self.assertEqual((small["place"], "in_place" in small), ("in", False))
        self.assertTrue(small["plugin"].endswith("/socket.so"), small)
        self.assertNotEqual(small["algorithm"], large["algorithm"])
        self.assertIn("socket has no collectives; ", small["why"])
        self.assertIn("more than ", large["why"])
        small, large = rows("all_reduce", "--transport", "shm", "--bytes", "4,1M", "--explain")
        self.assertRegex(small["why"], "^shm has its own; small: ")
        self.assertRegex(large["why"], "^shm has its own; direct: ")
        foreign, = rows("all_reduce", "--transport", "shm", "--bytes", "1M", "--explain", "--foreign", "--rank-order")
        self.assertRegex(foreign["why"], "^shm has its own; staged: ")
        row, = rows("all_reduce", "--transport", "shm", "--bytes", "4", "--explain", "--algorithm", "ring")
        self.assertEqual((row["algorithm"], row["why"]), ("ring", "not the plugin's; asked for by name"))

    def test_a_device_with_memory_of_its_own(self):
        found = rows("all", "--nproc", 2, "--transport", "shm", "--memory", "cpu-queue", "--bytes", "70K")
        self.assertEqual({row["wrong"] for row in found}, {0})
        self.assertEqual({row["in_place"]["wrong"] for row in found if row["in_place"]}, {0})
        self.assertNotIn("send_recv", {row["op"] for row in found})

    def test_waiting(self):
        row, = rows("idle", "--nproc", 2, "--transport", "socket")
        self.assertEqual((row["op"], row["transport"], row["ranks"]), ("idle", "socket", 2))
        self.assertTrue(0 <= row["core_percent"] < 100, row)


class Table(unittest.TestCase):
    def test_columns_of_nccl_tests(self):
        status, out, err = bench("all_reduce", "--nproc", 2, "--transport", "shm", "--bytes", "1K", "--explain", *QUICK)
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        figures = ["time", "algbw", "busbw", "#wrong"]
        self.assertIn(["#", "size", "count", "type", "redop", "root", *figures, *figures], [line.split() for line in lines])
        row = next(line.split() for line in lines if line.split()[:1] == ["1024"])
        self.assertEqual((row[:5], len(row), row[8], row[12]), (["1024", "256", "f32", "sum", "-1"], 13, "0", "0"))
        self.assertIn("# Out of bounds values : 0 OK", lines)
        self.assertTrue(any(line.startswith("# Avg bus bandwidth    : ") for line in lines), out)
        self.assertTrue(any(line.startswith("# shm: /") for line in lines), out)
        self.assertTrue(any(line.startswith("#   native: shm has its own; ") for line in lines), out)

    def test_help_names_every_option(self):
        status, out, _ = bench("--help")
        self.assertEqual(status, 0)
        for word in ("--nproc", "--bytes", "--vs", "--explain", "--check", "all_reduce, reduce_scatter", "ping_pong", "busbw"):
            self.assertIn(word, out)


class Failures(unittest.TestCase):
    def test_wrong_results_are_counted_and_fail(self):
        status, out, _ = bench("send_recv", "--nproc", 2, "--transport", PLUGINS / "faulty.so", "--transport-options", "fault=flips_bits", "--bytes", "64,64K", *QUICK, "--json")
        self.assertEqual(status, 1)
        self.assertEqual([json.loads(line)["wrong"] for line in out.splitlines()], [0, 2])  # one element on each rank
        status, out, _ = bench("all_gather", "--nproc", 2, "--transport", PLUGINS / "faulty.so", "--transport-options", "fault=flips_bits", "--bytes", "64K", *QUICK)
        self.assertEqual(status, 1)
        self.assertRegex(out, r"# Out of bounds values : \d+ FAILED")

    def test_a_rank_dies(self):
        prun = subprocess.Popen([PRUN, "bench", "all_reduce", "--nproc", "3", "--transport", "shm", "--bytes", "1M", "--budget", "100"],
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        children = pathlib.Path(f"/proc/{prun.pid}/task/{prun.pid}/children")
        while len(children.read_text().split()) < 3:
            time.sleep(0.01)
        os.kill(int(children.read_text().split()[1]), signal.SIGKILL)
        _, err = prun.communicate(timeout=60)
        self.assertEqual(prun.returncode, 10)
        # A rank that dies while it joins may first lose a connection, of which the launcher warns.
        self.assertRegex(err, r"(?m)^prun: rank \d was killed by SIGKILL$")
        self.assertNotIn("prun check", err)


if __name__ == "__main__":
    PRUN, PLUGINS = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
