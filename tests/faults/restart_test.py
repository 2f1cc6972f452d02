#!/usr/bin/env python3
"""Kills ranks, launchers and nodes of jobs that may begin again: where they go on, on how many ranks, and that the losses are those
of a run that nobody disturbed.

Usage: restart_test.py PRUN. Standard library only.
"""
import json
import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prun_faults_test as faults  # noqa: E402

STEPS = 400
PLAN = [word.replace("steps=1000000", f"steps={STEPS}") for word in faults.ENDLESS]
faults.DEADLINE_S = 60  # for the whole run, beside others


def rows(run):
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def losses(run):
    return [row["loss"] for row in rows(run)]


def committed(folder):
    """The step of the newest checkpoint."""
    try:
        return int((folder / "LATEST").read_text()[len("step_"):])
    except FileNotFoundError:
        return 0


class Restart(faults.Jobs):
    def job(self, *options, plan=PLAN):
        return self.start("--nproc", "4", "--checkpoint", "ck", "--checkpoint-every", "20", *options, plan=plan)

    def kill(self, run, rank, after):
        """Not a rank of the attempt before; where there are checkpoints, after a newer commit than before."""
        before = getattr(run, "killed", set())
        run.wait_for_steps(after)
        self.wait_for_commit(run)
        faults.wait_for(lambda: run.ranks().get(rank) not in before | {None}, f"rank {rank}")
        pid = run.ranks()[rank]
        run.killed = before | {pid}
        os.kill(pid, signal.SIGKILL)

    def wait_for_commit(self, run):
        if "--checkpoint" not in run.process.args:
            return
        folder = pathlib.Path(run.folder.name, run.process.args[run.process.args.index("--checkpoint") + 1])
        faults.wait_for(lambda: committed(folder) > getattr(run, "commit", 0), "a commit")
        run.commit = committed(folder)

    def undisturbed(self):
        run = self.start("--nproc", "4", plan=PLAN)
        self.assertEqual(run.wait()[0], 0, run.text())
        return losses(run)

    def expect_whole(self, run):
        self.assertEqual([row["step"] for row in rows(run)], list(range(1, STEPS + 1)), run.text())

    def test_a_killed_rank_costs_the_steps_since_the_last_commit(self):
        run = self.job("--max-restarts", "2")
        self.kill(run, 2, 15)
        self.kill(run, 0, 40)
        self.assertEqual(run.wait()[0], 0, run.text())
        for number in (1, 2):
            self.assertRegex(run.text(), rf"prun: restart {number} of 2 from step \d+0 \(ck/step_0+\d+0\)")
        self.assertIn("prun: rank 2 was killed by SIGKILL", run.text())
        self.expect_whole(run)
        self.assertEqual(losses(run), self.undisturbed(), "to the bit")

    def test_the_budget_ends(self):
        run = self.job("--max-restarts", "1")
        self.kill(run, 1, 12)
        self.kill(run, 1, 30)
        self.assertEqual(run.wait()[0], 10, run.text())
        self.assertEqual(run.text().count("prun: restart"), 1, run.text())

    def test_without_checkpoints_it_begins_at_the_beginning(self):
        run = self.start("--nproc", "2", "--max-restarts", "1", plan=PLAN)
        self.kill(run, 1, 5)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertIn("prun: restart 1 of 1 from the beginning\n", run.text())
        self.expect_whole(run)

    def test_checkpoints_of_another_run_are_not_resumed_from(self):
        first = self.job(plan=[*PLAN[:-1], "steps=20"])
        self.assertEqual(first.wait()[0], 0, first.text())
        folder = pathlib.Path(first.folder.name, "ck")
        run = self.start("--nproc", "2", "--max-restarts", "1", "--checkpoint", str(folder), plan=PLAN)
        run.wait_for_steps(3)
        os.kill(run.ranks()[1], signal.SIGKILL)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertIn("restart 1 of 1 from the beginning", run.text())

    def test_what_will_fail_again_is_not_begun_again(self):
        run = self.job("--max-restarts", "3")
        run.wait_for_steps()
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.wait()[0], 130, run.text())
        self.assertNotIn("restart", run.text())
        run = self.start("--nproc", "2", "--max-restarts", "3", "--check-finite", plan=[*PLAN, "--set", "lr=1e30"])
        self.assertEqual(run.wait()[0], 20, run.text())
        self.assertNotIn("restart", run.text())

    def test_the_job_goes_on_with_fewer_ranks(self):
        run = self.job("--min-ranks", "2")
        self.kill(run, 3, 15)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertRegex(run.text(), r"prun: goes on with fewer ranks from step \d+0")
        self.assertIn("zero3.lua on 3 ranks", run.text())
        self.expect_whole(run)
        for mine, alone in zip(losses(run), self.undisturbed()):
            self.assertAlmostEqual(mine, alone, delta=1e-3 * alone)

    def test_a_number_of_ranks_that_does_not_divide_the_batch_is_passed_over(self):
        run = self.job("--min-ranks", "2", plan=[word.replace("batch=12", "batch=8") for word in PLAN])
        self.kill(run, 3, 15)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertIn("zero3.lua on 2 ranks", run.text())

    def test_least_ranks(self):
        run = self.job("--min-ranks", "4")
        self.kill(run, 3, 15)
        self.assertEqual(run.wait()[0], 10, run.text())
        self.assertNotIn("goes on", run.text())

    def nodes(self, *options):
        place = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{faults.free_port()}"]
        folder = faults.tempfile.mkdtemp(prefix="prun_restart")
        self.addCleanup(faults.subprocess.run, ["rm", "-rf", folder], check=False)
        keep = ["--checkpoint", folder + "/ck", "--checkpoint-every", "20"]
        return [self.start("--nproc", "2", "--node-rank", str(node), *place, *keep, *options, plan=PLAN) for node in (0, 1)]

    def test_both_nodes_begin_again(self):
        head, member = self.nodes("--max-restarts", "1")
        self.wait_for_commit(head)
        os.kill(member.ranks()[3], signal.SIGKILL)
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertEqual(member.wait()[0], 0, member.text())
        self.assertRegex(head.text(), r"prun: restart 1 of 1 from step \d+0")
        self.assertIn("prun: node 1 joins again\n", member.text())
        self.assertEqual(losses(head), self.undisturbed(), "to the bit")

    def test_a_lost_node_is_done_without(self):
        head, member = self.nodes("--min-ranks", "2")
        self.wait_for_commit(head)
        member.process.kill()
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertIn("going on without node 1", head.text())
        self.assertIn("zero3.lua on 2 ranks", head.text())
        self.expect_whole(head)


if __name__ == "__main__":
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
