#!/usr/bin/env python3
"""A feeder that is killed ends the job with code 21; a slow one is named; a killed job ends its feeder. The tests wait
for lines and processes, never for a time. Usage: feed_faults_test.py PRUN
"""
import os
import pathlib
import signal
import subprocess
import sys
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tools/python"), str(TOP / "tests/data")]
from inputs import Inputs  # noqa: E402
from prun.feed import path_of  # noqa: E402

Inputs.prun_path = str(pathlib.Path(sys.argv[1]).resolve())
# Gives two batches, then one for each line that it reads.
FEEDER = f"""
import sys
sys.path[:0] = [{str(TOP / "tools/python")!r}, {str(TOP / "tests/data")!r}]
import prun
from inputs import shaped
batch = {{"tokens": shaped("q", [1] * 64, 8, 8), "labels": shaped("q", [2] * 64, 8, 8),
         "weights": shaped("f", [1] * 64, 8, 8)}}
def batches():
    yield batch
    yield batch
    for line in sys.stdin:
        yield batch
prun.feed(batches(), sys.argv[1])
"""


class FeedFaults(Inputs):
    def setUp(self):
        self.name = f"faults-{os.getpid()}"
        self.addCleanup(pathlib.Path(path_of(self.name)).unlink, missing_ok=True)  # of a killed feeder

    def start(self, **settings):
        feeder = subprocess.Popen([sys.executable, "-c", FEEDER, self.name], stdin=subprocess.PIPE, text=True)
        job = subprocess.Popen(self.words("--quiet", **{"from": "feed", "name": self.name, **settings}),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        for process in (feeder, job):
            self.addCleanup(process.wait, 60)
            self.addCleanup(process.kill)
        for stream in (feeder.stdin, job.stdout, job.stderr):
            self.addCleanup(stream.close)
        return feeder, job

    def line(self, job, *expected):
        """Returns the job's next line on standard error that has these words."""
        read = []
        for line in job.stderr:
            read.append(line)
            if all(words in line for words in expected):
                return line
        self.fail(f"no line with {expected} in {read}, and the job ended with {job.wait(60)}")

    def test_a_slow_feeder_is_named(self):
        for mesh in ({}, {"dp": 2}):
            feeder, job = self.start(steps=4, **mesh)
            self.line(job, f"the feed '{self.name}' is slow: a step has waited ", "for batch 2")
            feeder.stdin.write("\n\n")
            feeder.stdin.flush()
            text = job.communicate(timeout=60)[1]
            self.assertEqual(job.returncode, 0, text)
            feeder.stdin.close()
            self.assertEqual(feeder.wait(60), 0)
            self.assertFalse(os.path.exists(path_of(self.name)))

    def test_a_killed_feeder_ends_the_job(self):
        for mesh in ({}, {"dp": 2, "micro": 2}):
            feeder, job = self.start(steps=4, **mesh)
            self.line(job, f"the feed '{self.name}' is slow: a step has waited ", "for batch 2")
            feeder.kill()
            text = job.communicate(timeout=60)[1]
            self.assertEqual(job.returncode, 21, text)
            self.assertIn(f"the feed '{self.name}' has died", text)

    def test_a_killed_job_ends_its_feeder(self):
        feeder, job = self.start(steps=4)
        self.line(job, f"the feed '{self.name}' is slow: a step has waited ", "for batch 2")
        job.send_signal(signal.SIGKILL)
        feeder.stdin.write("\n" * 40)
        feeder.stdin.flush()
        self.assertEqual(feeder.wait(60), 0)
        self.assertFalse(os.path.exists(path_of(self.name)))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
