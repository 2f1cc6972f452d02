#!/usr/bin/env python3
"""Stops, kills and delays ranks of real runs: which rank is blamed, after how long, and the records for prun explain
and status.

Usage: supervision_test.py PRUN [--slow]: slow cases wait for the default time limits. Standard library only, so that a
bare machine can run it.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import prun_faults_test as faults

SLOW, SLOW_DISK = False, None


def prun(*words, cwd=None, code=0, **environment):
    done = subprocess.run([faults.PRUN, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **environment})
    if done.returncode != code:
        raise AssertionError(f"prun {words} ended with {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def shown_jobs():
    """Returns {launcher's process id: job} of prun status."""
    return {job["pid"]: job for job in json.loads(prun("status", "--json"))}


def wait_until_shown(run, step):
    faults.wait_for(lambda: shown_jobs().get(run.process.pid, {}).get("step", -1) >= step, f"a status with step {step}")


class Supervision(unittest.TestCase):
    def setUp(self):
        self.runs = []

    def tearDown(self):
        for run in self.runs:
            if run.process.poll() is None:
                for pid in run.ranks().values():
                    os.kill(pid, signal.SIGCONT)
                run.process.kill()
                run.process.wait()
            run.folder.cleanup()

    def start(self, *options, **more):
        self.runs.append(faults.Run(*options, **more))
        return self.runs[-1]

    def end(self, run, code, seconds=40):
        self.assertEqual(run.process.wait(timeout=seconds), code, run.text())

    def kept(self, run):
        [folder] = pathlib.Path(run.folder.name, "runs").iterdir()
        return folder

    def events(self, folder):
        return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]

    def wait_for_words(self, run, words, seconds):
        faults.wait_for(lambda: words in run.text(), f"'{words}' in\n{run.text()}", seconds)


class Failures(Supervision):
    def test_a_killed_rank_leaves_what_all_ranks_were_at(self):
        run = self.start("--nproc", "3")
        run.wait_for_steps()
        victim = run.ranks()[1]
        os.kill(victim, signal.SIGKILL)
        self.end(run, 10)
        folder = self.kept(run)
        failure = json.loads((folder / "failure.json").read_text())
        self.assertEqual((failure["code"], failure["name"]), (10, "rank crash"))
        self.assertEqual((failure["who"]["rank"], failure["who"]["node"], failure["who"]["pid"]), (1, 0, victim))
        self.assertEqual(failure["who"]["host"], os.uname().nodename)
        self.assertRegex(failure["source"]["file"], r"\.lua$")
        self.assertGreater(failure["source"]["line"], 0)
        self.assertRegex(failure["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        names = [event["event"] for event in self.events(folder)]
        self.assertEqual(names[0], "started")
        self.assertEqual(sorted(e["rank"] for e in self.events(folder) if e["event"] == "joined"), [0, 1, 2])
        self.assertEqual(names[-2:], ["failure", "ended"])
        text = prun("explain", folder)
        self.assertIn("failed (10, rank crash): rank 1 was killed by SIGKILL\n", text)
        self.assertRegex(text, rf"   1  .*, pid {victim}: step \d+: its process has ended")
        self.assertRegex(text, r"the last ops that rank 1 ended:\n +.* ago +.* step \d+, ")
        told = json.loads(prun("explain", folder, "--json"))
        self.assertEqual([rank["rank"] for rank in told["ranks"]], [0, 1, 2])
        self.assertEqual(told["ranks"][1]["doing"], "ended")
        self.assertEqual(told["failure"]["who"]["rank"], 1)

    def test_what_a_rank_writes_is_in_its_log_and_on_the_screen(self):
        run = self.start("--nproc", "2", "--runs", "R", plan=["plans/collectives.lua"])
        self.end(run, 0)
        [folder] = pathlib.Path(run.folder.name, "R").iterdir()
        logs = sorted(path.name for path in folder.glob("rank_*.log"))
        self.assertEqual(logs, ["rank_0.log", "rank_1.log"])
        self.assertIn("after broadcast on rank 1 ", (folder / "rank_1.log").read_text())
        self.assertNotIn("on rank 0", (folder / "rank_1.log").read_text())


class Hangs(Supervision):
    def test_a_rank_that_nobody_waits_for_and_that_does_not_go_on(self):
        run = self.start("--nproc", "1", "--timeout", "3", "--chaos", "delay:rank=0,seconds=3600@step=4")
        self.end(run, 11)
        self.assertRegex(run.text(), r"prun: rank 0 does not go on: it is (between ops|computing .*) for \d")

    def test_a_stopped_rank_is_named_and_the_job_ends(self):
        """Blames the stopped rank, not those that wait for it, even in another group or for a message or a put."""
        plans = [("zero3", 3, []), ("megatron", 4, ["tp=2"]), ("1f1b", 2, ["batch=16"]), ("3d", 8, ["batch=16"])]
        if SLOW:
            plans += [("one_sided", 2, ["batch=16"]), ("ring_attention", 2, []), ("fsdp", 4, ["replicate=2"]), ("interleaved", 2, ["batch=16", "layers=4"]),
                      ("zero_bubble", 2, ["batch=16"]), ("ddp", 3, []), ("moe", 2, [])]
        rng = random.Random(len(plans))
        for plan, ranks, settings in plans:
            victim = rng.randrange(ranks)
            with self.subTest(plan=plan, victim=victim):
                words = [f"plans/{plan}.lua", *faults.ENDLESS[1:], *(word for setting in settings for word in ("--set", setting))]
                run = self.start("--nproc", str(ranks), "--timeout", "3", plan=words)
                run.wait_for_steps()
                pid = run.ranks()[victim]
                os.kill(pid, signal.SIGSTOP)
                begin = time.monotonic()
                self.end(run, 11)
                self.assertLess(time.monotonic() - begin, 10)
                text = run.text()
                self.assertRegex(text, rf"prun: rank {victim} (has not )?entered .*stopped for .* \(state T\)")
                self.assertRegex(text, rf"where: +rank {victim} on .*, pid {pid}\n")
                self.assertRegex(text, r"evidence: .*; in the kernel its threads are stopped \(state T\)\n")
                stacks = (self.kept(run) / "stacks.txt").read_text()
                self.assertRegex(stacks, rf"rank {victim} on \S+, pid {pid}: its threads are stopped \(state T\)\n")
                self.assertRegex(stacks, rf"  thread {pid} '.*' state T")
                told = json.loads(prun("explain", self.kept(run), "--json"))
                self.assertEqual(told["culprit"], victim)
                self.assertEqual(told["ranks"][victim]["doing"], "stopped")
                self.assertTrue([rank["rank"] for rank in told["ranks"] if rank["doing"] == "waiting"])

    def test_many_ranks_on_a_busy_machine_raise_no_alarm(self):
        if not SLOW:
            self.skipTest("only with --slow")
        neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            run = self.start("--nproc", "64", "--set", "batch=64")
            time.sleep(60)
            self.assertIsNone(run.process.poll(), run.text())
            self.assertNotIn("prun: ", run.text())
        finally:
            for neighbour in neighbours:
                neighbour.kill()
                neighbour.wait()

    def test_a_stopped_rank_is_named_with_the_default_limits(self):
        run = self.start("--nproc", "3")
        run.wait_for_steps()
        pid = run.ranks()[2]
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        self.wait_for_words(run, f"rank 2 on {os.uname().nodename}, pid {pid}, is stopped for ", 15)
        self.assertGreater(time.monotonic() - begin, 5)
        os.kill(pid, signal.SIGCONT)
        steps = run.steps()
        faults.wait_for(lambda: run.steps() > steps + 3, "more steps", 10)

    def test_explain_of_a_job_that_hangs_now(self):
        run = self.start("--nproc", "3")
        run.wait_for_steps()
        pid = run.ranks()[2]
        os.kill(pid, signal.SIGSTOP)
        self.wait_until_kept(run, 2)
        told = json.loads(prun("explain", run.process.pid, "--json"))
        self.assertTrue(told["running"])
        self.assertEqual(told["culprit"], 2)
        self.assertIn("rank 2 ", prun("explain", run.process.pid).splitlines()[1])
        os.kill(pid, signal.SIGCONT)

    def wait_until_kept(self, run, stopped):
        """The launcher stores its view after updating its status, so once a second status shows the stopped rank, the
        first is stored.
        """
        seen = set()

        def kept():
            told = json.loads(prun("status", run.process.pid, "--json"))
            job = told[0] if isinstance(told, list) else told
            if job["ranks"][stopped]["state"] == "stopped":
                seen.add(job["updated"])
            return len(seen) >= 2
        faults.wait_for(kept, "a status with the stopped rank")

    def test_explain_of_a_launcher_that_was_killed(self):
        """Names the job by process id, the only name of a job without a folder, and by its folder."""
        for options in ([], ["--runs", "R"]):
            run = self.start("--nproc", "3", *options)
            run.wait_for_steps()
            pid = run.ranks()[2]
            os.kill(pid, signal.SIGSTOP)
            self.wait_until_kept(run, 2)
            run.process.kill()
            run.process.wait()
            word = next(pathlib.Path(run.folder.name, "R").iterdir()) if options else run.process.pid
            text = prun("explain", word, cwd=run.folder.name)
            self.assertIn(": its launcher was killed, and the ranks with it; this is what it last saw\n", text)
            self.assertRegex(text, r"rank 2 (never )?entered .*stopped for ")
            self.assertRegex(text, rf"   2  .*, pid {pid}: ")


    def test_a_slow_disk_is_named(self):
        """A checkpoint is due every second step, and one rank's part does not reach the disk."""
        if SLOW_DISK is None:
            self.skipTest("without --slow-disk")
        for victim in (0, 2):
            run = self.with_slow_disk(victim)
            run.wait_for_steps(2)
            told = {}

            def stuck(run=run, told=told, victim=victim):
                told.update(json.loads(prun("explain", run.process.pid, "--json")))
                return told["culprit"] == victim and "checkpoint" in told["sentence"]  # another rank may write for a moment
            faults.wait_for(stuck, "ranks that wait for a checkpoint")
            self.assertRegex(told["sentence"], r"(is writing a checkpoint .*|has been writing its part of the checkpoint after step \d+) for \d")
            self.assertRegex(prun("explain", run.process.pid), r"beside it: writing a checkpoint after step \d+ for \d")
            names = [event["event"] for event in self.events(self.kept(run))]
            self.assertEqual(names.count("checkpoint_begun"), names.count("checkpoint_committed") + 1, names)
            run.stuck.unlink()
            self.end(run, 0, 60)
            names = [event["event"] for event in self.events(self.kept(run))]
            self.assertEqual(names.count("checkpoint_begun"), names.count("checkpoint_committed"), names)
            self.assertIn("checkpoint_copied", names)

    def test_a_read_that_does_not_end_is_named(self):
        """A rank is blocked in a read of its data, and the others wait for it."""
        if SLOW_DISK is None:
            self.skipTest("without --slow-disk")
        folder = pathlib.Path(faults.tempfile.mkdtemp(prefix="prun_read"))
        self.addCleanup(subprocess.run, ["rm", "-rf", folder], check=False)
        data, pipe = folder / "tokens.txt", folder / "pipe"
        data.write_text("to be or not to be " * 200)
        run = self.start("--nproc", "3", "--timeout", "4", "--set", f"data={data}",
                         before=["env", f"LD_PRELOAD={SLOW_DISK}", "SLOW_READ=tokens.txt", "SLOW_READ_IN=prun-rank1", f"SLOW_READ_FROM={pipe}"])
        run.wait_for_steps()
        os.mkfifo(pipe)
        self.end(run, 11)
        self.assertRegex(run.text(), r"prun: rank 1 .*reading data \(next_batch ")
        self.assertRegex(run.text(), rf"evidence: .*; in the kernel its thread '.*' waits in read of {pipe}.* \(state [SD]\)\n")
        self.assertRegex((self.kept(run) / "stacks.txt").read_text(), rf"  thread \d+ '.*' state [SD] in read of {pipe}")

    def with_slow_disk(self, victim):
        folder = faults.tempfile.mkdtemp(prefix="prun_disk")
        self.addCleanup(subprocess.run, ["rm", "-rf", folder], check=False)
        flag = pathlib.Path(folder, "stuck")
        flag.touch()
        run = self.start("--nproc", "3", "--checkpoint", "ck", "--checkpoint-every", "2", "--runs", "runs", plan=[*faults.ENDLESS[:-1], "steps=12"],
                         before=["env", f"LD_PRELOAD={SLOW_DISK}", f"SLOW_DISK=/rank_{victim:05}_", f"SLOW_DISK_WHILE={flag}"])
        run.stuck = flag
        return run


class Nodes(Supervision):
    def two_nodes(self, *options, head=(), **more):
        place = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{faults.free_port()}", "--nproc", "2"]
        return [self.start("--node-rank", str(node), *place, *options, *(head if node == 0 else ()), **more) for node in (0, 1)]

    def test_trace_and_metrics_have_the_ranks_of_all_nodes(self):
        head, member = self.two_nodes(head=["--trace", "trace.json"], plan=[*faults.ENDLESS[:-1], "steps=40"])
        self.end(head, 0)
        self.end(member, 0)
        self.assertEqual(head.steps(), 40)
        events = json.loads(pathlib.Path(head.folder.name, "trace.json").read_text())["traceEvents"]
        steps = {rank: {event["args"]["step"] for event in events if event.get("pid") == rank and "op" in event.get("args", {})} for rank in range(4)}
        self.assertEqual(steps[0], set(range(40)))
        for rank in (1, 2, 3):
            self.assertEqual(steps[rank], steps[0], f"rank {rank}")
        self.assertNotIn("lacks", head.text())

    def test_a_stopped_rank_of_another_node_is_named_by_node_0(self):
        head, member = self.two_nodes("--timeout", "4")
        head.wait_for_steps()
        time.sleep(0.6)
        pid = member.ranks()[3]
        os.kill(pid, signal.SIGSTOP)
        self.end(head, 11)
        self.end(member, 11)
        self.assertRegex(head.text(), r"prun: rank 3 (has not )?entered .*stopped for ")
        self.assertRegex(head.text(), rf"where: +rank 3 on \S+ \(node 1\), pid {pid}\n")
        self.assertIn("; in the kernel its threads are stopped (state T)\n", head.text())
        self.assertRegex((self.kept(head) / "stacks.txt").read_text(), rf"rank 3 on \S+, pid {pid}: its threads are stopped \(state T\)\n")
        told = json.loads(prun("explain", self.kept(head), "--json"))
        self.assertEqual([rank["node"] for rank in told["ranks"]], [0, 0, 1, 1])
        self.assertEqual((told["culprit"], told["ranks"][3]["pid"]), (3, pid))
        failure = json.loads((self.kept(head) / "failure.json").read_text())
        self.assertEqual((failure["who"]["rank"], failure["who"]["node"], failure["who"]["pid"]), (3, 1, pid))

    def test_status_beside_another_node_shows_the_job(self):
        head, member = self.two_nodes()
        head.wait_for_steps(20)
        wait_until_shown(head, 1)
        wait_until_shown(member, 0)
        jobs = shown_jobs()
        self.assertEqual([jobs[each.process.pid]["steps"] for each in (head, member)], [1000000, 1000000])
        self.assertEqual([rank["rank"] for rank in jobs[member.process.pid]["ranks"]], [2, 3])
        self.assertIn(f" {member.process.pid} ", prun("status"))
        os.kill(member.ranks()[2], signal.SIGKILL)
        self.end(head, 10)
        self.end(member, 10)

    def test_a_killed_rank_of_another_node_leaves_its_last_ops(self):
        head, member = self.two_nodes()
        head.wait_for_steps(30)
        os.kill(member.ranks()[2], signal.SIGKILL)
        self.end(head, 10)
        self.end(member, 10)
        self.assertIn("the last ops that rank 2 ended:\n", prun("explain", self.kept(head)))


class Slow(Supervision):
    def test_a_slow_rank_is_named_and_the_job_goes_on(self):
        """The rank is stopped most of the time, and the others wait for it.

        Its steps are mostly compute: a stop inside a collective does not delay the rank's arrival.
        """
        run = self.start("--nproc", "3", "--set", "width=128", "--set", "context=64")
        run.wait_for_steps()
        pid = run.ranks()[1]
        words = f"rank 1 on {os.uname().nodename}, pid {pid}, is slow: "
        end = time.monotonic() + 60
        while words not in run.text() and time.monotonic() < end:
            for number, seconds in ((signal.SIGSTOP, 0.12), (signal.SIGCONT, 0.04)):
                os.kill(pid, number)
                time.sleep(seconds)
        self.assertIn(words, run.text())
        [named] = set(re.findall(r"rank (\d) on \S+, pid \d+, is slow", run.text()))
        self.assertEqual(named, "1")
        steps = run.steps()
        faults.wait_for(lambda: run.steps() > steps, "another step", 10)


class Status(Supervision):
    def test_a_running_job_is_shown(self):
        run = self.start("--nproc", "2", "--runs", "R")
        run.wait_for_steps(20)
        wait_until_shown(run, 6)
        job = shown_jobs()[run.process.pid]
        self.assertGreater(job["tokens_per_s"], 0)
        self.assertEqual([rank["pid"] for rank in job["ranks"]], [run.ranks()[0], run.ranks()[1]])
        self.assertEqual(pathlib.Path(job["folder"]).parent.name, "R")
        line = [line for line in prun("status").splitlines() if str(run.process.pid) in line]
        self.assertRegex(line[0], r"plans/zero3.lua +2 +\d+/1000000 ")
        self.assertIn("RANK  HOST", prun("status", run.process.pid))
        for word in (job["id"], job["folder"]):
            self.assertIn(str(run.process.pid), prun("status", word))
        text = prun("status", "--prometheus")
        self.assertRegex(text, rf'prun_step{{run="{job["id"]}",plan="plans/zero3.lua",pid="{run.process.pid}"}} \d+\n')
        self.assertRegex(text, r"# TYPE prun_loss gauge\n")
        run.process.send_signal(signal.SIGINT)
        self.end(run, 130)
        self.assertNotIn(run.process.pid, shown_jobs())

    def test_a_stopped_launcher_is_said(self):
        run = self.start("--nproc", "2")
        run.wait_for_steps()
        run.process.send_signal(signal.SIGSTOP)
        self.assertIn("it is stopped (kill -CONT", prun("explain", run.process.pid, code=11))
        run.process.send_signal(signal.SIGCONT)


class Clean(Supervision):
    def test_what_a_killed_job_left_goes_and_what_lives_stays(self):
        run = self.start("--nproc", "2", "--checkpoint", "ck")
        other = self.start("--nproc", "2", "--checkpoint", "ck")
        for one in (run, other):
            one.wait_for_steps()
        mine = [pathlib.Path(path) for path in (f"/run/user/{os.getuid()}/prun", f"/tmp/prun-{os.getuid()}", os.environ.get("XDG_RUNTIME_DIR", "/") + "/prun")
                if pathlib.Path(path, str(run.process.pid)).exists()]
        status = mine[0] / str(run.process.pid)
        self.assertEqual(status.stat().st_mode & 0o777, 0o700)
        ranks = run.ranks().values()
        run.process.kill()
        run.process.wait()
        faults.wait_for(lambda: not any(map(faults.running, ranks)), "the end of all ranks", 5)
        old = time.time() - 3600
        for folder in (run.folder.name, other.folder.name):
            left = pathlib.Path(folder, "ck", "step_00000003.dead.tmp")
            left.mkdir()
            (left / "data").write_bytes(bytes(1000))
            os.utime(left, (old, old))
        os.utime(status, (old, old))
        folders = (pathlib.Path(run.folder.name, "ck"), pathlib.Path(other.folder.name, "ck"))
        said = prun("clean", "--dry-run", *folders)
        self.assertIn(f"{status}  (status of a job that was killed", said)
        self.assertTrue(status.exists())
        rows = json.loads(prun("clean", "--json", *folders))
        self.assertIn({"path": str(folders[0] / "step_00000003.dead.tmp"), "what": "unfinished checkpoint", "bytes": 1000, "result": "removed"}, rows)
        self.assertFalse(status.exists())
        self.assertFalse((folders[0] / "step_00000003.dead.tmp").exists())
        self.assertTrue((folders[1] / "step_00000003.dead.tmp").exists(), "the other job is alive")
        self.assertTrue((status.parent / str(other.process.pid)).exists())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prun")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--slow-disk", type=pathlib.Path, help="the library slow_disk")
    arguments, rest = parser.parse_known_args()
    SLOW_DISK = arguments.slow_disk and arguments.slow_disk.resolve()
    faults.PRUN, SLOW = str(pathlib.Path(arguments.prun).resolve()), arguments.slow
    unittest.main(argv=[sys.argv[0], *rest])
