#!/usr/bin/env python3
"""The OOM killer kills a rank in a cgroup of the test: the job ends with 18 and names the cause.

Usage: memory_test.py PRUN. Needs root and a cgroup that may be divided; skipped with a reason otherwise.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import prun_faults_test as faults

LIMIT = 512 << 20
# Touches 8 MiB more in each iteration.
HOG = """
import time
kept = []
while True:
    kept.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.01)
"""


def own_group(controller):
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller:
            return path.lstrip("/")
    return None


def make_group():
    """Returns the folder and the file of its limit, for cgroups version 1 or 2."""
    places = [("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "", "memory.max")]
    problems = []
    for root, controller, limit in places:
        path = own_group(controller)
        if path is None:
            continue
        folder = pathlib.Path(root, path, f"prun-test-{os.getpid()}")
        try:
            folder.mkdir()
            (folder / limit).write_text(str(LIMIT))
            return folder
        except OSError as problem:
            problems.append(str(problem))
            if folder.is_dir():
                folder.rmdir()
    raise unittest.SkipTest(f"no cgroup with a limit on memory can be made here: {'; '.join(problems)}")


class Memory(unittest.TestCase):
    def test_a_rank_that_the_kernel_kills_for_memory(self):
        group = make_group()
        self.addCleanup(self.remove, group)
        runs = tempfile.TemporaryDirectory()
        self.addCleanup(runs.cleanup)
        inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        run = faults.Run("--nproc", "2", "--runs", runs.name, before=inside)
        self.addCleanup(run.folder.cleanup)
        self.addCleanup(self.end, run.process)
        run.wait_for_steps()
        pathlib.Path(f"/proc/{run.ranks()[1]}/oom_score_adj").write_text("1000")  # the OOM killer's first choice
        hog = subprocess.Popen([*inside, sys.executable, "-c", HOG])
        self.addCleanup(self.end, hog)
        self.assertEqual(run.process.wait(120), 18, run.text())
        self.assertRegex(run.text(), r"prun: rank 1 was killed because memory ran out\n")
        self.assertRegex(run.text(), r"evidence: SIGKILL .*, and the kernel counted a kill for memory \(oom_kill\)")

    def remove(self, group):
        faults.wait_for(lambda: not (group / "cgroup.procs").read_text(), "the end of all processes")
        group.rmdir()

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()


if __name__ == "__main__":
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=sys.argv[:1])
