#!/usr/bin/env python3
"""--bind: reads from the kernel, while ranks run, the cores that they and all their threads may use.
Usage: bind_test.py PRUN TOP
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PRUN, TOP = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
FOLDER = tempfile.TemporaryDirectory()  # run folders of stopped runs
CORES = sorted(os.sched_getaffinity(0))
RANKS = min(2, len(CORES))
PLAN = [f"{TOP}/plans/zero3.lua", "--set", "layers=1", "--set", "width=32", "--set", "batch=8", "--set", "context=16"]


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cores_of_threads(pid):
    return {frozenset(os.sched_getaffinity(int(task.name))) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}


def cores_of_ranks(*words, ranks=RANKS):
    """Returns for each rank the affinity sets of its threads while it trains."""
    run = subprocess.Popen([PRUN, *PLAN, "--nproc", str(ranks), "--set", "steps=1000000", *words], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, cwd=FOLDER.name)
    try:
        for line in run.stdout:
            if line.startswith("step"):
                break
        deadline = time.monotonic() + 30
        while len(children(run.pid)) < ranks and time.monotonic() < deadline:
            time.sleep(0.01)
        return [cores_of_threads(pid) for pid in children(run.pid)]
    finally:
        run.send_signal(signal.SIGTERM)
        run.stdout.read()
        run.wait(30)
        run.stdout.close()


class Bind(unittest.TestCase):
    def test_each_rank_has_cores_of_its_own(self):
        ranks = cores_of_ranks("--bind", "core")
        self.assertEqual(len(ranks), RANKS)
        for threads in ranks:
            self.assertEqual(len(threads), 1, "its threads differ")
        sets = [next(iter(threads)) for threads in ranks]
        self.assertEqual(len(frozenset.union(*sets)), sum(len(each) for each in sets), "two ranks have a core in common")
        self.assertLessEqual(frozenset.union(*sets), set(CORES))

    def test_none_and_one_numa_node_bind_nothing(self):
        whole = [{frozenset(CORES)}] * RANKS
        self.assertEqual(cores_of_ranks("--bind", "none"), whole)
        nodes = [path for path in pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")]
        if len(nodes) < 2:
            self.assertEqual(cores_of_ranks(), whole)
            self.assertEqual(cores_of_ranks("--bind", "numa"), whole)

    def test_more_ranks_than_cores_are_bound_to_nothing(self):
        self.assertEqual(cores_of_ranks(ranks=len(CORES) + 2), [{frozenset(CORES)}] * (len(CORES) + 2))

    def test_a_cpuset_is_kept(self):
        one = subprocess.run([PRUN, *PLAN, "--set", "steps=1", "--bind", "core"], text=True, capture_output=True, timeout=60,
                             preexec_fn=lambda: os.sched_setaffinity(0, CORES[-1:]))
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertIn(f"bound      each rank to its cores {CORES[-1]}\n", one.stdout)
        two = subprocess.run([PRUN, *PLAN, "--nproc", "2", "--set", "steps=1", "--bind", "core"], text=True, capture_output=True,
                             timeout=60, preexec_fn=lambda: os.sched_setaffinity(0, CORES[-1:]))
        self.assertEqual((two.returncode, two.stderr), (2, "prun: --bind core: 2 ranks and 1 core; a rank needs one of its own "
                                                           "(--bind numa, none)\n"))

    def test_the_summary_says_it(self):
        for words, said in ((["--bind", "core"], True), ([], False)):
            done = subprocess.run([PRUN, *PLAN, "--nproc", str(RANKS), "--set", "steps=1", *words], text=True, capture_output=True, timeout=60)
            self.assertEqual("bound      each rank to its cores" in done.stdout, said, done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
