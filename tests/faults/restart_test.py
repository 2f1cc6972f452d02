#!/usr/bin/env python3
"""Kills ranks, launchers and nodes of restartable jobs: checks where they continue, on how many ranks, and that losses
equal those of an undisturbed run.

Usage: restart_test.py PRUN. Standard library only.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prun_faults_test as faults  # noqa: E402

STEPS = 400
ALONE = {}  # losses of undisturbed runs, by plan
PLAN = [word.replace("steps=1000000", f"steps={STEPS}") for word in faults.ENDLESS]
faults.DEADLINE_S = 60  # for a whole run, concurrent with others


def rows(run):
    """Returns the rows of steps, without checkpoint rows."""
    return [row for row in map(json.loads, run.metrics.read_text().splitlines()) if "loss" in row]


def losses(run):
    return [row["loss"] for row in rows(run)]


def committed(folder):
    """Returns the step of the newest checkpoint."""
    try:
        return int((folder / "LATEST").read_text()[len("step_"):])
    except FileNotFoundError:
        return 0


class Restart(faults.Jobs):
    def job(self, *options, plan=PLAN):
        return self.start("--nproc", "4", "--checkpoint", "ck", "--checkpoint-every", "20", *options, plan=plan)

    def kill(self, run, rank, after):
        """Kills a rank of an attempt with no killed rank yet; with checkpoints, after a newer commit than the last
        time.
        """
        before = getattr(run, "killed", set())  # all ranks of earlier attempts, which may still be ending
        run.wait_for_steps(after)
        self.wait_for_commit(run)
        faults.wait_for(lambda: run.ranks().get(rank) not in before | {None}, f"rank {rank}")
        ranks = run.ranks()
        run.killed = before | set(ranks.values())
        os.kill(ranks[rank], signal.SIGKILL)

    def wait_for_commit(self, run):
        if "--checkpoint" not in run.process.args:
            return
        folder = pathlib.Path(run.folder.name, run.process.args[run.process.args.index("--checkpoint") + 1])
        faults.wait_for(lambda: committed(folder) > getattr(run, "commit", 0), "a commit")
        run.commit = committed(folder)

    def undisturbed(self, plan=None):
        """Returns the losses of the plan's job, or of replicated_plan()'s job, cached for all cases."""
        name = "replicated" if plan else "zero3"
        if name not in ALONE:
            run = self.start("--nproc", "4", plan=plan or PLAN)
            self.assertEqual(run.wait()[0], 0, run.text())
            ALONE[name] = losses(run)
        return ALONE[name]

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
        shown = subprocess.run([faults.PRUN, "ckpt", "show", pathlib.Path(run.folder.name, "ck")], capture_output=True, text=True, timeout=60)
        self.assertIn("\nrestarts       2 led here\n", shown.stdout)

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

    def test_a_plan_that_keeps_checkpoints_without_a_folder_begins_again(self):
        run = self.replicated("--max-restarts", "1", keep="every = 20")
        run.wait_for_steps(5)
        os.kill(run.ranks()[1], signal.SIGKILL)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertIn("restart 1 of 1 from the beginning", run.text())
        self.assertIn("has no folder for them; add --checkpoint DIR", run.text())

    def test_what_a_killed_launcher_left_in_memory_is_cleaned(self):
        run = self.replicated("--max-restarts", "1")
        faults.wait_for(lambda: committed(self.memory_of(run)) >= 20, "a commit to memory")
        ranks = run.ranks().values()
        run.process.kill()
        run.process.wait()
        self.expect_gone(ranks)
        self.assertTrue(self.memory_of(run).exists())
        faults.subprocess.run([faults.PRUN, "clean"], cwd=run.folder.name, check=True, capture_output=True)
        self.assertFalse(self.memory_of(run).exists())

    def test_checkpoints_of_another_run_are_not_resumed_from(self):
        first = self.job(plan=[*PLAN[:-1], "steps=20"])
        self.assertEqual(first.wait()[0], 0, first.text())
        folder = pathlib.Path(first.folder.name, "ck")
        run = self.start("--nproc", "2", "--max-restarts", "1", "--checkpoint", str(folder), "--overwrite", plan=PLAN)
        run.wait_for_steps(3)
        os.kill(run.ranks()[1], signal.SIGKILL)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertIn("restart 1 of 1 from the beginning", run.text())

    def test_what_will_fail_again_is_not_begun_again(self):
        run = self.start("--nproc", "4", "--max-restarts", "3", plan=PLAN)
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

    def replicated(self, *options, **more):
        return self.start("--nproc", "4", *options, plan=[self.replicated_plan(**more)])

    def replicated_plan(self, keep="every = 20, replicate = 1", steps=STEPS):
        folder = faults.tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        plan = pathlib.Path(folder.name, "plan.lua")
        plan.write_text(f"""local prun = require "prun"
return prun.plan {{
  mesh = prun.mesh {{ dp = prun.world }},
  model = prun.models.gpt {{ vocab = 256, layers = 2, width = 32, heads = 2, context = 16 }},
  data = prun.data.bytes {{ path = "text/sample.txt", batch = 12 }},
  strategy = {{ prun.zero3 {{ axis = "dp" }} }}, optimizer = prun.adamw {{ lr = 1e-3 }},
  steps = {steps}, checkpoint = prun.checkpoint {{ {keep} }},
}}
""")
        return str(plan)

    def memory_of(self, run):
        return pathlib.Path(f"/dev/shm/prun-replicas-{run.process.pid}")

    def test_a_lost_rank_is_recovered_from_memory(self):
        run = self.replicated("--max-restarts", "1")
        faults.wait_for(lambda: committed(self.memory_of(run)) >= 20, "a commit to memory")
        os.kill(run.ranks()[2], signal.SIGKILL)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertRegex(run.text(), r"prun: restart 1 of 1 from step \d+0 \(/dev/shm/prun-replicas-")
        self.expect_whole(run)
        alone = self.undisturbed([self.replicated_plan()])
        self.assertEqual(losses(run), alone, "to the bit")
        self.assertFalse(self.memory_of(run).exists())

    def test_commits_to_memory_come_between_those_to_the_disk(self):
        run = self.replicated("--max-restarts", "1", "--checkpoint", "ck", keep="every = 200, replicate = 1, memory_every = 20")
        faults.wait_for(lambda: committed(self.memory_of(run)) >= 20, "a commit to memory")
        os.kill(run.ranks()[2], signal.SIGKILL)
        self.assertEqual(run.wait()[0], 0, run.text())
        self.assertRegex(run.text(), r"prun: restart 1 of 1 from step \d+0 \(/dev/shm/prun-replicas-")
        kept = sorted(path.name for path in pathlib.Path(run.folder.name, "ck").glob("step_*"))
        self.assertEqual(kept, ["step_00000200", "step_00000400"])

    def test_memory_and_disk_that_do_not_meet(self):
        run = self.replicated("--max-restarts", "1", keep="every = 30, replicate = 1, memory_every = 20")
        self.assertEqual(run.wait()[0], 3, run.text())
        self.assertIn("plan.lua:7: commits to memory every 20 steps do not meet those to the disk, every 30", run.text())

    def nodes(self, *options, plan=PLAN):
        place = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{faults.free_port()}"]
        folder = faults.tempfile.mkdtemp(prefix="prun_restart")
        self.addCleanup(faults.subprocess.run, ["rm", "-rf", folder], check=False)
        keep = ["--checkpoint", folder + "/ck", "--checkpoint-every", "20"]
        return [self.start("--nproc", "2", "--node-rank", str(node), *place, *keep, *options, plan=plan) for node in (0, 1)]

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

    def test_a_lost_node_without_ranks_is_not_missed(self):
        head, member = self.nodes("--min-ranks", "2", plan=faults.ENDLESS)
        self.wait_for_commit(head)
        for last in (3, 2):
            os.kill(member.ranks()[last], signal.SIGKILL)
            faults.wait_for(lambda ranks=last: f"zero3.lua on {ranks} ranks" in head.text(), "going on with fewer ranks")
            faults.wait_for(lambda ranks=last: len(head.ranks()) + len(member.ranks()) == ranks, "the ranks")
        member.process.kill()
        faults.wait_for(lambda: "is lost; no rank runs there, and the job goes on" in head.text(), "the loss of node 1")
        head.process.send_signal(signal.SIGTERM)  # node 1 is gone and cannot answer
        self.assertEqual(head.wait()[0], 75, head.text())

    def node(self, number, place, *options, **more):
        return self.start("--nproc", "2", "--node-rank", str(number), *place, *options, plan=PLAN, **more)

    def test_a_node_that_comes_back_is_taken_in(self):
        folder = faults.tempfile.mkdtemp(prefix="prun_restart")
        self.addCleanup(faults.subprocess.run, ["rm", "-rf", folder], check=False)
        options = ["--checkpoint", folder + "/ck", "--checkpoint-every", "20"]
        head, place = self.without_node_1(*options)
        back = self.come_back(head, lambda: self.node(1, place, *options), "has come back")
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertEqual(back.wait()[0], 0, back.text())
        self.assertIn("prun: node 1 (", head.text())
        self.assertRegex(head.text(), r"has come back: it takes part after a commit\n(.*\n)*"
                                      r"prun: goes on with the nodes that have come, from step \d+ ")
        self.assertEqual(head.text().count("zero3.lua on 4 ranks"), 2, head.text())
        self.assertIn("prun: the job runs without node 1 and takes it in after a commit\n", back.text())
        self.expect_whole(head)
        for mine, alone in zip(losses(head), self.undisturbed()):
            self.assertAlmostEqual(mine, alone, delta=1e-3 * alone)

    def without_node_1(self, *options, **more):
        """Starts a job of two nodes that continues without node 1."""
        place = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{faults.free_port()}"]
        head, member = (self.node(number, place, *options, "--min-ranks", "2", **more) for number in (0, 1))
        head.wait_for_steps(5)
        self.wait_for_commit(head)
        self.kill_node(member)
        faults.wait_for(lambda: "zero3.lua on 2 ranks" in head.text(), "going on with fewer ranks")
        return head, place

    def come_back(self, head, start, said):
        """Stops the ranks of node 0 meanwhile, so that the job does not end first."""
        faults.wait_for(lambda: len(head.ranks()) == 2, "the ranks of node 0")
        still = list(head.ranks().values())
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        back = start()
        faults.wait_for(lambda: said in head.text(), said)
        for pid in still:
            os.kill(pid, signal.SIGCONT)
        return back

    def test_a_node_that_comes_back_and_is_not_needed(self):
        for code in (0, 10):
            head, place = self.without_node_1()
            back = self.come_back(head, lambda place=place: self.node(1, place),
                                  "waits for the next restart, since this job makes no commits")
            if code != 0:
                os.kill(head.ranks()[0], signal.SIGKILL)
            self.assertEqual(head.wait()[0], code, head.text())
            self.assertEqual(back.wait()[0], code, back.text())
            why = "the job has ended" if code == 0 else "node 0 has ended the job: rank 0 was killed by SIGKILL"
            self.assertIn(f"prun: node 1 was not needed any more: {why}\n", back.text())

    def test_a_node_that_comes_back_with_a_lesser_cpu_is_refused(self):
        before = ["env", "-u", "ONEDNN_MAX_CPU_ISA"]
        head, place = self.without_node_1(before=before)
        other = self.come_back(head, lambda: self.node(1, place, before=["env", "ONEDNN_MAX_CPU_ISA=SSE41"]), "without")
        self.assertEqual(other.wait()[0], 2, other.text())
        self.assertRegex(other.text(), r"node 1 \(.+\) cannot run the kernels of this job, for avx.+: its CPU goes up to any ")
        self.assertEqual(head.wait()[0], 0, head.text())

    def test_a_node_that_comes_back_with_other_options_is_refused(self):
        head, place = self.without_node_1()
        other = self.come_back(head, lambda: self.node(1, place, "--check-replicas", "7"), "without")
        self.assertEqual(other.wait()[0], 2, other.text())
        self.assertIn("--check-replicas", other.text())
        self.assertEqual(head.wait()[0], 0, head.text())

    def nodes_in_memory(self, *options, **more):
        plan, port = self.replicated_plan(**more), faults.free_port()
        return [self.start("--nproc", "2", "--nnodes", "2", "--node-rank", str(node), "--rendezvous", f"127.0.0.1:{port}", *options, plan=[plan])
                for node in (0, 1)]

    def parts(self, run):
        """Returns which ranks' parts of which commit a node holds: {step: {ranks}}."""
        found = {}
        for manifest in self.memory_of(run).glob("step_*/rank_?????.json"):
            found.setdefault(int(manifest.parent.name[5:13]), set()).add(int(manifest.name[5:10]))
        return found

    def test_a_lost_node_is_recovered_from_its_neighbours_memory(self):
        head, member = self.nodes_in_memory("--min-ranks", "2")
        faults.wait_for(lambda: any(ranks == {0, 1, 2, 3} for ranks in self.parts(head).values()), "a copy of node 1's parts")
        self.kill_node(member)
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertRegex(head.text(), r"prun: goes on with fewer ranks from step \d+0 \(the nodes' memory\)")
        self.assertIn("plan.lua on 2 ranks", head.text())
        self.expect_whole(head)
        alone = self.undisturbed([self.replicated_plan()])
        for mine, other in zip(losses(head), alone):
            self.assertAlmostEqual(mine, other, delta=1e-3 * other)

    def test_a_lost_rank_of_several_nodes_is_recovered_from_memory(self):
        head, member = self.nodes_in_memory("--max-restarts", "1")
        faults.wait_for(lambda: any(ranks == {0, 1, 2, 3} for ranks in self.parts(member).values()), "a copy of node 0's parts")
        os.kill(member.ranks()[3], signal.SIGKILL)
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertEqual(member.wait()[0], 0, member.text())
        self.assertRegex(head.text(), r"prun: restart 1 of 1 from step \d+0 \(the nodes' memory\)")
        self.expect_whole(head)
        for node in (head, member):
            self.assertFalse(self.memory_of(node).exists())

    def test_a_lost_node_that_comes_back_gets_its_state_from_memory(self):
        head, member = self.nodes_in_memory("--max-restarts", "1")
        faults.wait_for(lambda: any(ranks == {0, 1, 2, 3} for ranks in self.parts(head).values()), "a copy of node 1's parts")
        self.kill_node(member)
        back = self.start(*member.process.args[2:-2], plan=[member.process.args[1]])
        self.assertEqual(head.wait()[0], 0, head.text())
        self.assertEqual(back.wait()[0], 0, back.text())
        self.assertRegex(head.text(), r"prun: restart 1 of 1 from step \d+0 \(the nodes' memory\)")
        self.expect_whole(head)
        alone = self.undisturbed([self.replicated_plan()])
        self.assertEqual(losses(head), alone, "to the bit")

    def kill_node(self, run):
        """Kills its launcher and its ranks at once."""
        ranks = list(run.ranks().values())
        for pid in [run.process.pid, *ranks]:
            os.kill(pid, signal.SIGKILL)
        run.process.wait()
        self.expect_gone(ranks)
        faults.subprocess.run(["rm", "-rf", self.memory_of(run)], check=True)  # a lost host has lost its memory


if __name__ == "__main__":
    faults.run_with_own_shm()
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
