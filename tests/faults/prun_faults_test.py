#!/usr/bin/env python3
"""Kills ranks and launchers of real training runs: checks exit code, message, time, and that no process is left.

Usage: prun_faults_test.py PRUN [--kills N] [--substitutes DIR] [--slow]: N seeded kills at random moments, in addition
to the fixed cases; DIR has the substitutes for CUDA and NCCL; slow cases wait for a deadline. Standard library only, so
that a bare machine can run it.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PRUN, KILLS, SUBSTITUTES, SLOW = "", 4, None, False
DEADLINE_S = 10  # limit for a job's end; generous for busy machines
ENDLESS = ["plans/zero3.lua", "--set", "layers=2", "--set", "width=32", "--set", "heads=2", "--set", "context=16",
           "--set", "batch=12", "--set", "steps=1000000"]


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.01)


def state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def running(pid):
    try:
        return state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False


def ranks_of(pid):
    """Returns {rank: process id} of a launcher's children."""
    found = {}
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            match = re.match(r"prun-rank(\d+)", pathlib.Path(f"/proc/{child}/comm").read_text())
        except OSError:  # the script child has just ended
            continue
        if match:
            found[int(match[1])] = int(child)
    return found


def run_with_own_shm():
    """Restarts this test with a /dev/shm of its own, where it sees no files of concurrent tests, if that is permitted."""
    if "TEST_HAS_OWN_SHM" in os.environ:
        return
    inside = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode == 0:
        os.environ["TEST_HAS_OWN_SHM"] = "1"
        os.execvp(inside[0], [*inside, sys.executable, *sys.argv])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def last_settings(words):
    """Returns the words without each --set that a later one of the same argument replaces; prun refuses both."""
    names = [word.split("=")[0] if i > 0 and words[i - 1] == "--set" else None for i, word in enumerate(words)]
    replaced = {j for i, name in enumerate(names) if name is not None and name in names[i + 1:] for j in (i - 1, i)}
    return [word for i, word in enumerate(words) if i not in replaced]


class Run:
    """One launcher with its ranks; `before`: prefix of the command."""

    def __init__(self, *options, plan=ENDLESS, before=()):
        self.folder = tempfile.TemporaryDirectory()
        self.metrics = pathlib.Path(self.folder.name, "metrics.jsonl")
        self.errors = pathlib.Path(self.folder.name, "words")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen([*before, PRUN, *last_settings([*plan, *options]), "--metrics", self.metrics], cwd=self.folder.name,
                                            stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def steps(self):
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0

    def wait_for_steps(self, count=3):
        def enough():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before step {count}\n{self.text()}")
            return self.steps() >= count
        wait_for(enough, f"step {count}")

    def ranks(self):
        return ranks_of(self.process.pid)

    def text(self):
        return self.errors.read_text()

    def wait(self):
        begin = time.monotonic()
        code = self.process.wait(timeout=DEADLINE_S)
        return code, time.monotonic() - begin


class Jobs(unittest.TestCase):
    """Ends the processes that a case has started, and detects any that it left behind."""

    def setUp(self):
        self.runs = []
        self.shared = set(os.listdir("/dev/shm"))

    def tearDown(self):
        for run in self.runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
            run.folder.cleanup()
        self.assertEqual(set(os.listdir("/dev/shm")) - self.shared, set(), "left in /dev/shm")

    def start(self, *options, **more):
        self.runs.append(Run(*options, **more))
        return self.runs[-1]

    def expect_gone(self, pids):
        wait_for(lambda: not any(map(running, pids)), "the end of all ranks", 5)


class Faults(Jobs):
    def expect_crash(self, run, rank, pid, name, code, seconds):
        text = run.text()
        self.assertEqual(code, 10, text)
        self.assertLess(seconds, 3)
        self.assertIn(f"prun: rank {rank} was killed by {name}\n", text)
        self.assertRegex(text, rf"where: +rank {rank} on .*, pid {pid}\n")
        self.assertRegex(text, r"op: +.*\.lua:\d+")  # site in the plan, or in its model or strategy
        self.assertRegex(text, r"next: +\S")
        self.assertEqual(text.count("prun: "), 1, f"one cause, not its effects:\n{text}")

    def test_a_killed_rank_ends_the_job(self):
        for transport in ("shm", "socket"):
            for name in ("SIGKILL", "SIGSEGV"):
                with self.subTest(transport=transport, signal=name):
                    run = self.start("--nproc", "3", "--transport", transport)
                    run.wait_for_steps()
                    ranks = run.ranks()
                    self.assertEqual(sorted(ranks), [0, 1, 2])
                    os.kill(ranks[1], getattr(signal, name))
                    code, seconds = run.wait()
                    self.expect_crash(run, 1, ranks[1], name, code, seconds)
                    self.expect_gone(ranks.values())

    def over_nccl(self):
        nccl = SUBSTITUTES / "libnccl_2_28.so"
        os.environ.update(PRUN_DEVICE_PATH=str(SUBSTITUTES / "devices"), PRUN_SUBSTITUTE_MEMORY_MIB="256")
        return ["--device", "cuda", "--transport", "nccl", "--transport-options", f"library={nccl},cudart={nccl}"]

    def test_a_killed_rank_ends_replayed_steps(self):
        self.kill_a_rank_in_replayed_steps()

    def test_a_killed_rank_ends_replayed_steps_on_a_shared_gpu(self):
        self.kill_a_rank_in_replayed_steps(",nccl.share=1", "--ranks-per-device", "2")

    def kill_a_rank_in_replayed_steps(self, options="", *more):
        """No rank is inside a transport call: the device waits for a collective that the dead rank never joins."""
        if SUBSTITUTES is None:
            self.skipTest("without the substitutes for CUDA and NCCL, which a build without the CUDA Toolkit does not have")
        *words, settings = self.over_nccl()
        run = self.start("--nproc", "2", *words, settings + options, *more, "--set", "layers=1")
        run.wait_for_steps(5)
        ranks = run.ranks()
        os.kill(ranks[1], signal.SIGKILL)
        code, seconds = run.wait()
        text = run.text()
        self.assertEqual(code, 10, text)
        self.assertLess(seconds, 3)
        self.assertIn("prun: rank 1 was killed by SIGKILL\n", text)
        self.assertIn(": a graph of it, replayed by the device", text)
        self.assertEqual(text.count("prun: "), 1, f"one cause, not its effects:\n{text}")
        self.expect_gone(ranks.values())

    def test_a_stopped_rank_in_replayed_steps_is_named(self):
        if SUBSTITUTES is None or not SLOW:
            self.skipTest("only with --slow, and the substitutes for CUDA and NCCL")
        run = self.start("--nproc", "3", "--timeout", "6", *self.over_nccl(), "--set", "layers=1")
        run.wait_for_steps(5)
        stopped = run.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        code, _ = run.wait()
        self.assertEqual(code, 11, run.text())
        self.assertRegex(run.text(), r"prun: rank [02]: the device cuda has been at its work for .* it waits for rank 1, of which nothing has been heard")
        self.expect_gone([stopped])

    def test_kills_at_random_moments(self):
        for seed in range(KILLS):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                nproc = rng.choice([1, 2, 4])
                run = self.start("--nproc", str(nproc), "--transport", rng.choice(["shm", "socket"]))
                wait_for(lambda run=run, nproc=nproc: len(run.ranks()) == nproc, "the start of all ranks")
                ranks = run.ranks()
                time.sleep(rng.uniform(0, 0.3))  # while ranks join, initialize or train
                victim = rng.randrange(nproc)
                os.kill(ranks[victim], signal.SIGKILL)
                code, seconds = run.wait()
                self.assertEqual(code, 10, run.text())
                self.assertLess(seconds, 3)
                self.assertIn(f"prun: rank {victim} was killed by SIGKILL", run.text())
                self.expect_gone(ranks.values())

    def test_a_killed_launcher_leaves_nobody(self):
        run = self.start("--nproc", "3")
        run.wait_for_steps()
        ranks = run.ranks()
        run.process.kill()
        run.process.wait()
        wait_for(lambda: not any(map(running, ranks.values())), "the end of all ranks", 1)

    def test_interrupt(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            run = self.start("--nproc", "3")
            run.wait_for_steps()
            ranks = run.ranks()
            run.process.send_signal(number)
            self.assertEqual(run.wait()[0], code, run.text())
            self.assertIn(f"prun: ended by {signal.Signals(number).name}", run.text())
            self.expect_gone(ranks.values())

    def two_nodes(self, *options, **more):
        place = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", *options]
        return [self.start("--nproc", "2", "--node-rank", str(node), *place, **more) for node in (0, 1)]

    DISAGREE = r"prun: rank (\d): ranks disagree: rank (\d) called (\w+ .*), rank \1 called (\w+ .*) \(group of ranks 0, 1, 2(, 3)?\)\n"

    def expect_disagreement(self, text):
        """Asserts that both ops are reported side by side, one of them of the rank that omitted a call."""
        found = re.search(self.DISAGREE, text)
        self.assertIsNotNone(found, text)
        self.assertIn("1", found.group(1, 2), text)
        self.assertNotEqual(found[3], found[4])
        self.assertRegex(text, r"op: +\w+ .*\.lua:\d+")
        self.assertRegex(text, r"next: +prun check ")

    def test_a_rank_that_calls_another_collective(self):
        for transport in ("shm", "socket"):
            with self.subTest(transport=transport):
                run = self.start("--nproc", "3", "--transport", transport, "--chaos", "omit:rank=1@step=3")
                self.assertEqual(run.wait()[0], 12, run.text())
                self.expect_disagreement(run.text())

    def test_a_rank_of_two_nodes_that_calls_another_collective(self):
        head, member = self.two_nodes("--chaos", "omit:rank=1@step=3")
        self.assertEqual((head.wait()[0], member.wait()[0]), (12, 12), head.text())
        self.expect_disagreement(head.text())
        self.assertIn("node 0 has ended the job: rank ", member.text())

    def test_nodes_that_resume_from_different_steps(self):
        kept = self.start("--nproc", "4", "--checkpoint", "ck", "--checkpoint-every", "2", plan=[*ENDLESS[:-1], "steps=4"])
        self.assertEqual(kept.wait()[0], 0, kept.text())
        rendezvous = f"127.0.0.1:{free_port()}"
        nodes = [self.start("--nproc", "2", "--nnodes", "2", "--node-rank", str(node), "--rendezvous", rendezvous, "--resume",
                            f"{kept.folder.name}/ck/step_0000000{step}") for node, step in ((0, 2), (1, 4))]
        self.assertEqual([run.wait()[0] for run in nodes], [12, 12], nodes[0].text())
        self.assertRegex(nodes[0].text(), r"step_00000004 is the state after 4 steps here, and after 2 where the job began: all nodes need the same ")

    def test_two_nodes_train_as_one(self):
        plan = [*ENDLESS[:-1], "steps=5"]
        head, member = self.two_nodes(plan=plan)
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertEqual(member.wait()[0], 0, member.text())
        alone = self.start("--nproc", "4", plan=plan)
        self.assertEqual(alone.wait()[0], 0, alone.text())
        losses = [re.findall(r'"loss": ?([0-9.eE+-]+)', run.metrics.read_text()) for run in (head, alone)]
        self.assertEqual(len(losses[0]), 5)
        for one, other in zip(*losses):
            self.assertAlmostEqual(float(one), float(other), delta=1e-4 * abs(float(other)))

    def test_a_killed_rank_ends_both_nodes(self):
        for node in (0, 1):
            with self.subTest(node=node):
                nodes = self.two_nodes()
                nodes[0].wait_for_steps()
                ranks = {**nodes[0].ranks(), **nodes[1].ranks()}
                victim = 2 * node + 1
                os.kill(ranks[victim], signal.SIGKILL)
                code, seconds = nodes[0].wait()
                self.expect_crash(nodes[0], victim, ranks[victim], "SIGKILL", code, seconds)
                self.assertEqual(nodes[1].wait()[0], 10)
                self.assertIn(f"node 0 has ended the job: rank {victim} was killed by SIGKILL", nodes[1].text())
                self.expect_gone(ranks.values())


if __name__ == "__main__":
    run_with_own_shm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prun")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--substitutes", type=pathlib.Path)
    parser.add_argument("--slow", action="store_true")
    arguments, rest = parser.parse_known_args()
    PRUN, KILLS = str(pathlib.Path(arguments.prun).resolve()), arguments.kills
    SUBSTITUTES, SLOW = arguments.substitutes and arguments.substitutes.resolve(), arguments.slow
    unittest.main(argv=[sys.argv[0], *rest])
