#!/usr/bin/env python3
"""Checkpoints that cannot be written: a disk that is full for a while, and one that fails a call. All ranks abandon
such a save and the job continues. It ends with 15 if the save is the last of the run, or with --checkpoint-strict.

Usage: abandoned_save_test.py PRUN [--failing-disk LIBRARY]. Standard library only.
"""
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
FAILING_DISK = pathlib.Path(sys.argv[3]).resolve() if "--failing-disk" in sys.argv else None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIZES = ["layers=4", "width=32", "heads=4", "context=16", "batch=8"]
FOREVER = 1000000


def sets(steps):
    return [word for setting in [*SIZES, f"steps={steps}"] for word in ("--set", setting)]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Saves(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.checkpoints = self.folder / "ck"

    def another_folder(self, number):
        self.folder = self.folder / str(number)
        self.folder.mkdir()
        self.checkpoints = self.folder / "ck"

    def words(self, steps, *options, plan="zero3", ranks=2, every=2):
        return [PRUN, str(ROOT / f"plans/{plan}.lua"), "--nproc", str(ranks), *sets(steps), "--checkpoint", str(self.checkpoints),
                "--checkpoint-every", str(every), *map(str, options)]

    def of_node_0(self):
        return ["--runs", self.folder / "runs", "--metrics", self.folder / "m", "--overwrite"]

    def train(self, steps, *options, code=0, env=None, **more):
        done = subprocess.run([*self.words(steps, *options, **more), *map(str, self.of_node_0())], cwd=self.folder, capture_output=True,
                              text=True, timeout=100, env={**os.environ, **(env or {})})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def start(self, steps, *options, **more):
        """Starts a run in the background; its standard error goes to the file errors.txt."""
        with open(self.folder / "errors.txt", "w") as errors:
            process = subprocess.Popen([*self.words(steps, *options, **more), *map(str, self.of_node_0())], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=errors)

        def end():
            process.kill()
            process.wait()
        self.addCleanup(end)
        return process

    def errors(self):
        return (self.folder / "errors.txt").read_text()

    def all_events(self):
        return [event for run in sorted((self.folder / "runs").glob("*")) for event in rows(run / "events.jsonl")]

    def events(self, kind):
        return [event for event in self.all_events() if event["event"] == kind]

    def wait_for(self, condition, what, process, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), f"ended with {process.poll()} before {what}\n{self.errors()}")
            self.assertLess(time.monotonic(), end, f"no {what}\n{self.errors()}")
            time.sleep(0.02)

    def kept(self):
        return sorted(path.name for path in self.checkpoints.iterdir() if not path.name.startswith("."))

    def assert_whole(self, *steps, branch=()):
        """Asserts that the folder has exactly these checkpoints. `branch`: steps of branch 2, the newest branch."""
        names = [f"step_{step:08}" for step in steps] + [f"step_{step:08}-2" for step in branch]
        self.assertEqual(self.kept(), sorted(["LATEST", *names]))
        self.assertEqual((self.checkpoints / "LATEST").read_text().strip(), names[-1])
        for name in names:
            subprocess.run([PRUN, "ckpt", "verify", str(self.checkpoints / name)], check=True, capture_output=True, timeout=60)


class Refusing(Saves):
    """One call fails for a path of one save, independent of the machine's speed."""

    def setUp(self):
        super().setUp()
        if FAILING_DISK is None:
            self.skipTest("without --failing-disk")

    def failing(self, call, path, code=errno.ENOSPC):
        return dict(LD_PRELOAD=str(FAILING_DISK), FAILING_CALL=call, FAILING_DISK=path, FAILING_ERRNO=str(code))

    def assert_abandoned(self, done, step, last, rank=None, code=errno.ENOSPC):
        """Asserts that the save gave one warning and one event."""
        [event] = self.events("checkpoint_abandoned")
        self.assertEqual((event["step"], event["errno"], event["folder"]), (step, code, str(self.checkpoints)))
        self.assertIn(event["last_step"], (last, None))  # a rank may be one save ahead of rank 0, which commits the previous one
        self.assertIn(os.strerror(code), event["what"])
        self.assertGreater(event["bytes"], 0)
        self.assertEqual(event["missing_bytes"], max(0, event["bytes"] - event["free_bytes"]))
        if rank is not None:
            self.assertEqual(event["rank"], rank)
        warnings = [line for line in done.stderr.splitlines() if "is abandoned by all ranks" in line]
        before = f"the last one is that after step {event['last_step']}" if event["last_step"] else "there is none yet"
        self.assertEqual(len(warnings), 1, done.stderr)
        self.assertRegex(warnings[0], rf"^prun: the checkpoint after step {step} is abandoned by all ranks, and the job goes on: rank \d+: "
                                      rf"cannot write {self.checkpoints}/step_{step:08}\S*: {os.strerror(code)}.*; a checkpoint takes [\d.]+ "
                                      rf"KiB, [\d.]+ \w+ are free; {before}$")
        begun, committed = ([event["step"] for event in self.events(f"checkpoint_{kind}")] for kind in ("begun", "committed"))
        self.assertEqual(sorted(begun), sorted(committed + [step]))
        self.assertEqual(self.events("checkpoint_failed"), [])

    def test_any_rank_and_any_call(self):
        cases = [("write", "step_00000004.,rank_00001_", errno.ENOSPC, 1), ("write", "step_00000004.,rank_00000_", errno.EDQUOT, 0),
                 ("open", "step_00000004.,rank_00002_", errno.EROFS, 2), ("fsync", "step_00000004.,rank_00001_", errno.EIO, 1),
                 ("write", "step_00000004.,index.json", errno.ENOSPC, 0), ("rename", ".tmp ,ck/step_00000004$", errno.ENOSPC, 0),
                 ("mkdir", "step_00000004.", errno.EACCES, None), ("rename", "step_00000004.,rank_00003.json", errno.EIO, 3)]
        for number, (call, path, code, rank) in enumerate(cases):
            with self.subTest(call=call, path=path):
                self.another_folder(number)
                done = self.train(7, plan="zero1", ranks=4, env=self.failing(call, path, code))
                self.assert_abandoned(done, 4, 2, rank, code)
                self.assert_whole(2, 6, 7)
                self.assertEqual([row["step"] for row in rows(self.folder / "m") if "loss" in row], list(range(1, 8)))

    def test_the_first_one(self):
        done = self.train(5, env=self.failing("write", "step_00000002.,rank_00001_"))
        self.assert_abandoned(done, 2, None, 1)
        self.assert_whole(4, 5)

    def test_strict(self):
        done = self.train(7, "--checkpoint-strict", code=15, env=self.failing("write", "step_00000004.,rank_00001_"))
        self.assertRegex(done.stderr, r"prun: rank 1: cannot write .*: No space left on device; free space, or keep fewer ")
        self.assertEqual(self.events("checkpoint_abandoned"), [])
        self.assertNotIn("step_00000004", self.kept())

    def test_the_last_one_ends_the_run_with_15(self):
        for path, rank in (("step_00000005.,rank_00001_", 1), ("step_00000005.,index.json", 0)):
            with self.subTest(path=path):
                self.another_folder(rank)
                done = self.train(5, code=15, env=self.failing("write", path))
                self.assertRegex(done.stderr, rf"prun: rank {rank}: the last checkpoint, after step 5, cannot be made: cannot write .*: No space")
                self.assertIn("step_00000002", self.kept())
                self.assertNotIn("step_00000005", self.kept())
                self.train(5, "--resume", "auto")
                self.assert_whole(2, 4, 5)

    def test_a_commit_of_another_branch_that_fails_changes_nothing(self):
        self.train(6)
        before = (self.checkpoints / "step_00000004/index.json").read_bytes()
        self.train(6, "--resume", self.checkpoints / "step_00000002", env=self.failing("rename", ".tmp ,ck/step_00000004-2$"))
        self.assertEqual((self.checkpoints / "step_00000004/index.json").read_bytes(), before)
        self.assert_whole(2, 4, 6, branch=[6])

    def test_a_file_system_without_locks(self):
        """A file replaces the lock. The next job replaces the file of a killed job."""
        locks = self.failing("flock", "ck/.lock", errno.ENOLCK)
        with unittest.mock.patch.dict(os.environ, locks):
            process = self.start(FOREVER, every=20)
        self.wait_for(lambda: self.events("checkpoint_committed"), "a commit", process)
        done = self.train(6, "--resume", "auto", code=2, env=locks)
        self.assertRegex(done.stderr, rf"prun: another run writes its checkpoints to .*/ck \(pid {process.pid} on .*\); this file system has no "
                         r"locks: remove .*/ck/.owner if that run has ended\n")
        process.kill()
        process.wait()
        elsewhere = self.train(4, "--resume", "auto", code=2, env=locks | {"PRUN_HOST_ID": "another machine"})
        self.assertIn("another run writes its checkpoints", elsewhere.stderr)  # its processes cannot be looked up here
        self.assertIn("raise 'steps'", self.train(4, "--resume", "auto", code=2, env=locks).stderr)
        self.assertFalse((self.checkpoints / ".owner").exists())

    def test_a_restart_goes_back_to_the_commit_before(self):
        """A rank is killed while the disk fails; SIGTERM ends the job once the disk works again."""
        flag = self.folder / "refuses"
        env = self.failing("write", "ck/step_,rank_00001_") | dict(FAILING_WHILE=str(flag))
        with unittest.mock.patch.dict(os.environ, env):
            process = self.start(FOREVER, "--max-restarts", 1, every=20)
        self.wait_for(lambda: self.events("checkpoint_committed"), "a commit", process)
        flag.touch()
        # During the first abandoned save the previous commit may still be in progress.
        self.wait_for(lambda: len(self.events("checkpoint_abandoned")) > 2, "saves that are abandoned", process)
        last = self.events("checkpoint_abandoned")[-1]["last_step"]
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        self.wait_for(lambda: f"prun: restart 1 of 1 from step {last} (" in self.errors(), "the restart", process)
        flag.unlink()
        committed = len(self.events("checkpoint_committed"))
        self.wait_for(lambda: len(self.events("checkpoint_committed")) > committed, "another commit", process)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75, self.errors())
        steps = [row["step"] for row in rows(self.folder / "m") if "loss" in row]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_going_back_from_a_number_that_is_not_finite(self):
        """The rollback awaits the save in progress and finds it abandoned."""
        done = self.train(7, "--max-restarts", 1, "--non-finite", "rollback", "--chaos", "nan:rank=1@step=5", plan="zero1",
                          env=self.failing("fsync", "step_00000004.,rank_00001_", errno.EIO))
        self.assertRegex(done.stderr, r"prun: restart 1 of 1 from step 2 \(.*\) without batches 3-5")
        self.assert_whole(2, 6, 7)

    def test_two_nodes(self):
        """A rank of the other node cannot write, so node 0's ranks abandon their written parts."""
        nodes = ["--nnodes", 2, "--rendezvous", f"unix:{self.folder.name}"]
        env = self.failing("write", "step_00000004.,rank_00003_")
        other = subprocess.Popen(self.words(7, *nodes, "--node-rank", 1), cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 env={**os.environ, **env})
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        done = self.train(7, *nodes, "--node-rank", 0)
        self.assertEqual(other.wait(60), 0)
        self.assert_abandoned(done, 4, 2, 3)
        self.assert_whole(2, 6, 7)

    def test_nodes_agree_on_strict(self):
        nodes = ["--nnodes", 2, "--rendezvous", f"unix:{self.folder.name}"]
        other = subprocess.Popen(self.words(7, *nodes, "--node-rank", 1, "--checkpoint-strict"), cwd=self.folder, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        done = self.train(7, *nodes, "--node-rank", 0, code=2)
        self.assertIn("--checkpoint-strict", done.stderr)


class Full(Saves):
    """A real disk: a small tmpfs that another process fills for a while."""

    def setUp(self):
        super().setUp()
        self.checkpoints.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", self.checkpoints], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.checkpoints])

    def fill(self):
        """Fills the current free space; a commit in progress removes older checkpoints later."""
        try:
            with open(self.checkpoints / ".ballast", "ab", buffering=0) as ballast:
                while ballast.write(bytes(1 << 14)) > 0:
                    pass
        except OSError as error:
            self.assertEqual(error.errno, errno.ENOSPC)

    def status(self, process):
        told = json.loads(subprocess.run([PRUN, "status", str(process.pid), "--json"], capture_output=True, text=True, timeout=60,
                                         check=True).stdout)
        return (told[0] if isinstance(told, list) else told)["checkpoint"]

    def test_one_rank(self):
        self.check_full_for_a_while(1)

    def test_several_ranks(self):
        self.check_full_for_a_while(4)

    def check_full_for_a_while(self, ranks):
        process = self.start(FOREVER, "--checkpoint-keep", 2, ranks=ranks, every=20)
        def abandoned():
            self.fill()
            return len(self.events("checkpoint_abandoned")) > 1
        self.wait_for(lambda: len(self.events("checkpoint_committed")) > 1, "two commits", process)
        self.wait_for(abandoned, "two saves that are abandoned", process)
        event = self.events("checkpoint_abandoned")[-1]
        self.assertEqual(event["errno"], errno.ENOSPC)
        self.assertGreater(event["missing_bytes"], 0)
        self.assertIn("No space left on device; free space, or keep fewer (--checkpoint-keep)", event["what"])

        def last_step():
            self.fill()
            return self.events("checkpoint_abandoned")[-1]["last_step"]
        self.wait_for(lambda: self.status(process) == last_step() is not None, "the last commit in prun status", process)
        event = self.events("checkpoint_abandoned")[-1]
        (self.checkpoints / ".ballast").unlink()
        self.wait_for(lambda: self.events("checkpoint_committed")[-1]["step"] > event["step"], "a commit after it", process)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75, self.errors())
        last = self.events("checkpoint_committed")[-1]["step"]
        self.assertEqual([name for name in self.kept() if name.endswith(".tmp")], [])
        self.assertEqual(self.kept()[-1], f"step_{last:08}")
        for name in self.kept()[1:]:
            subprocess.run([PRUN, "ckpt", "verify", str(self.checkpoints / name)], check=True, capture_output=True, timeout=60)

    def test_full_at_the_end(self):
        """SIGTERM while the disk is full: the training since the last commit is lost, and the job reports that."""
        process = self.start(FOREVER, "--checkpoint-keep", 2, every=20)

        def abandoned():
            self.fill()
            return self.events("checkpoint_abandoned")
        self.wait_for(lambda: self.events("checkpoint_committed"), "a commit", process)
        self.wait_for(abandoned, "a save that is abandoned", process)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 15, self.errors())
        self.assertRegex(self.errors(), r"prun: rank \d: the last checkpoint, after step \d+, cannot be made: .*No space left on device")
        newest = self.events("checkpoint_committed")[-1]["step"]
        self.assertEqual((self.checkpoints / "LATEST").read_text().strip(), f"step_{newest:08}")
        subprocess.run([PRUN, "ckpt", "verify", str(self.checkpoints)], check=True, capture_output=True, timeout=60)

    def test_strict(self):
        done = self.train(400, "--checkpoint-strict", code=15)
        self.assertIn("No space left on device; free space, or keep fewer (--checkpoint-keep)", done.stderr)
        self.assertEqual(self.events("checkpoint_abandoned"), [])
        subprocess.run([PRUN, "ckpt", "verify", str(self.checkpoints)], check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
