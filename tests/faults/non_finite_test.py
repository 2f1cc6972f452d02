#!/usr/bin/env python3
"""--non-finite: a NaN in one rank's gradients, or in the data, under every strategy. A skipped step does not change
parameters, moments or their count on any rank; a job that rolls back skips the batches that led there.

Usage: non_finite_test.py PRUN [--slow-disk LIBRARY]. Standard library only.
"""
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

PRUN = sys.argv[1]
SLOW_DISK = pathlib.Path(sys.argv[3]).resolve() if "--slow-disk" in sys.argv else None
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

STEPS = 7
SMALL = dict(layers=2, width=16, heads=2, context=8, batch=8, steps=STEPS, lr=0.01)
HUGE = 3e38  # data are checked before launch, which rejects NaNs
NAN = "nan:rank={}@step=3"
# plan, ranks, settings: data parallelism, all kinds of shards, stages, split weights, tokens and experts
STRATEGIES = (("ddp", 2, {}), ("zero1", 2, {}), ("zero2", 2, {}), ("zero3", 2, {}), ("fsdp", 4, dict(replicate=2)),
              ("megatron", 2, dict(tp=2)), ("1f1b", 2, dict(layers=4)), ("interleaved", 2, dict(layers=4)),
              ("zero_bubble", 2, dict(layers=4)), ("one_sided", 2, dict(layers=4)), ("ring_attention", 2, {}),
              ("3d", 4, dict(pp=2, tp=2)), ("zero3", 4, {}))
# One weight and one bias, trained on data from a file that are huge in some samples.
MODEL = """
local prun = require "prun"
local arg  = prun.args {{ steps = {steps} }}
return prun.plan {{
  mesh      = prun.mesh {{ dp = prun.world }},
  model     = prun.models.mlp {{ inputs = 4, outputs = 2, width = 8, layers = 2 }},
  data      = prun.data.arrays {{ x = "x.npy", y = "y.npy", batch = 4, order = "epochs" }},
  strategy  = {{ prun.zero1 {{ axis = "dp" }} }},
  optimizer = prun.adamw {{ lr = 0.01 }},
  steps     = arg.steps,
}}
"""

# y = x·w without a bias: the gradient of mean(y) is mean(x); its square overflows before the loss does.
LINEAR = """
local prun = require "prun"
local arg  = prun.args {{ strategy = "ddp", clip = 1.0, optimizer = "sgd" }}
return prun.plan {{
  mesh      = prun.mesh {{ dp = prun.world }},
  model     = prun.models.mlp {{ inputs = 8, outputs = 1, layers = 1, bias = false, loss = "{loss}" }},
  data      = prun.data.arrays {{ {files}, batch = 4 }},
  strategy  = {{ prun[arg.strategy] {{ axis = "dp" }} }},
  optimizer = prun[arg.optimizer] {{ lr = 0.5, clip = arg.clip }},
  report    = {{ every = 1, norms = true }},
  steps     = 2,
}}
"""


def npy(path, rows):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    numbers = [number for row in rows for number in row]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() +
                     struct.pack(f"<{len(numbers)}f", *numbers))


class NonFinite(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_plan(self, plan, ranks, *options, code=0, **settings):
        """Returns the completed process and the rows of its metrics."""
        metrics = self.folder / "metrics.jsonl"
        done = program_text.run(PRUN, plan, "--nproc", ranks, "--runs", self.folder / "runs", "--metrics", metrics, "--overwrite",
                                "--timeout", 60, *options, **settings)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done, [json.loads(line) for line in metrics.read_text().splitlines()]

    def losses(self, plan, ranks, *options, **settings):
        return [row["loss"] for row in self.run_plan(plan, ranks, *options, **settings)[1]]

    def events(self, kind):
        newest = max((self.folder / "runs").iterdir())
        return [event for event in map(json.loads, (newest / "events.jsonl").read_text().splitlines()) if event["event"] == kind]

    def assert_close(self, these, those):
        for a, b in zip(these, those, strict=True):
            self.assertAlmostEqual(a, b, delta=2e-5 * abs(b))

    def test_a_skipped_step_has_not_happened_under_any_strategy(self):
        alone = {}  # number of layers -> losses of one rank
        for layers in (2, 4):
            sizes = SMALL | dict(layers=layers)
            alone[layers] = self.losses("plans/single.lua", 1, "--non-finite", "skip", "--chaos", NAN.format(0), **sizes)
            undisturbed = self.losses("plans/single.lua", 1, **sizes)
            self.assertEqual(alone[layers][:3], undisturbed[:3])
            self.assertNotEqual(alone[layers][3], undisturbed[3])
        for plan, ranks, settings in STRATEGIES:
            sizes = SMALL | settings
            with self.subTest(plan=plan, ranks=ranks):
                for rank in {0, ranks - 1}:
                    # Ranks compare their replicated tensors after every step.
                    done, rows = self.run_plan(f"plans/{plan}.lua", ranks, "--non-finite", "skip", "--check-replicas", 1,
                                               "--chaos", NAN.format(rank), **sizes)
                    self.assertEqual([row["step"] for row in rows if row.get("skipped")], [3])
                    self.assertIn("prun: step 3 updated nothing: the norm of its gradients is NaN\n", done.stderr)
                    self.assert_close([row["loss"] for row in rows], alone[sizes["layers"]])

    def test_experts_skip_together(self):
        sizes = SMALL | dict(capacity=4)
        runs = [self.losses("plans/moe.lua", 2, "--non-finite", "skip", "--check-replicas", 1, "--chaos", NAN.format(rank), **sizes)
                for rank in (0, 1)]
        self.assert_close(*runs)
        self.assertNotEqual(runs[0][3], self.losses("plans/moe.lua", 2, **sizes)[3])

    def test_what_follows_a_skipped_step_is_what_follows_the_batches_without_it(self):
        """Two ways to train without batch 3 are bitwise equal: skipping its step, and rolling back and omitting it."""
        skips = self.losses("plans/zero1.lua", 2, "--non-finite", "skip", "--chaos", NAN.format(1), **SMALL)
        done, rows = self.run_plan("plans/zero1.lua", 2, "--non-finite", "rollback", "--max-restarts", 1, "--checkpoint",
                                   self.folder / "ck", "--checkpoint-every", 2, "--chaos", NAN.format(1), **SMALL)
        self.assertIn("without batch 3\n", done.stderr)
        self.assertEqual([row["step"] for row in rows], list(range(1, STEPS + 1)))
        self.assertEqual([row["loss"] for row in rows[2:-1]], skips[3:])

    def test_a_commit_that_is_under_way_is_gone_back_to(self):
        """Rank 1's part reaches the disk only after the NaN of the following step."""
        if SLOW_DISK is None:
            self.skipTest("without --slow-disk")
        flag = self.folder / "stuck"
        flag.touch()
        threading.Timer(2, flag.unlink).start()
        slow = dict(LD_PRELOAD=str(SLOW_DISK), SLOW_DISK="/rank_00001_", SLOW_DISK_WHILE=str(flag))
        with unittest.mock.patch.dict(os.environ, slow):
            done, rows = self.run_plan("plans/zero1.lua", 2, "--non-finite", "rollback", "--max-restarts", 1, "--checkpoint",
                                       self.folder / "ck", "--checkpoint-every", 2, "--chaos", NAN.format(1), **SMALL)
        self.assertRegex(done.stderr, r"from step 2 \(.*\) without batch 3\n")
        self.assertEqual([row["step"] for row in rows], list(range(1, STEPS + 1)))

    def test_a_checkpoint_knows_what_was_skipped_and_left_out(self):
        for policy in (["skip"], ["rollback", "--max-restarts", 1]):
            with self.subTest(policy=policy[0]):  # including Adam's step count
                checkpoints = self.folder / policy[0]
                options = ["--non-finite", *policy, "--checkpoint", checkpoints, "--checkpoint-every", 2]
                whole = self.losses("plans/zero2.lua", 2, *options, "--chaos", NAN.format(0), **SMALL)
                resume = ["--non-finite", *policy, "--checkpoint", self.folder / f"{policy[0]}_again", "--checkpoint-every", 2]
                rest = self.losses("plans/zero2.lua", 2, *resume, "--resume", checkpoints / "step_00000004", **SMALL)
                self.assertEqual(rest, whole[4:])

    def test_several_nodes_skip_together(self):
        alone = self.losses("plans/zero3.lua", 4, "--non-finite", "skip", "--chaos", NAN.format(3), **SMALL)
        done, rows = self.run_nodes("--non-finite", "skip")
        self.assertEqual([row["step"] for row in rows if row.get("skipped")], [3])
        self.assert_close([row["loss"] for row in rows], alone)

    def test_several_nodes_go_back_together(self):
        rollback = ["--non-finite", "rollback", "--max-restarts", 1, "--checkpoint-every", 2]
        alone = self.losses("plans/zero3.lua", 4, *rollback, "--checkpoint", self.folder / "alone", "--chaos", NAN.format(3), **SMALL)
        done, rows = self.run_nodes(*rollback, "--checkpoint", self.folder / "ck")
        self.assertIn("from step 2 (", done.stderr)
        self.assertIn("without batch 3\n", done.stderr)
        self.assertEqual([row["step"] for row in rows], list(range(1, STEPS + 1)))
        self.assert_close([row["loss"] for row in rows], alone)

    def run_nodes(self, *options):
        """Runs zero3 on two nodes of two ranks, the last of which has a NaN; returns node 0's process and rows."""
        words = [str(pathlib.Path(PRUN).resolve()), "plans/zero3.lua", "--nproc", "2", "--nnodes", "2", "--rendezvous",
                 f"unix:{self.folder.name}", "--chaos", NAN.format(3), *map(str, options)]
        for name, value in SMALL.items():
            words += ["--set", f"{name}={value}"]
        silent = dict(cwd=program_text.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        other = subprocess.Popen([*words, "--node-rank", "1"], **silent)
        self.addCleanup(other.kill)
        done = subprocess.run([*words, "--node-rank", "0", "--metrics", str(self.folder / "m")], cwd=program_text.ROOT,
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(other.wait(60), 0)
        return done, [json.loads(line) for line in (self.folder / "m").read_text().splitlines()]

    def arrays(self, bad, samples=80):
        """Writes arrays and a plan that trains on them in epoch order; the products of samples in `bad` overflow."""
        x = [[math.sin(i + 7 * j) for j in range(4)] for i in range(samples)]
        for sample in bad:
            x[sample][1] = HUGE
        npy(self.folder / "x.npy", x)
        npy(self.folder / "y.npy", [[math.cos(i), math.cos(2 * i)] for i in range(samples)])
        plan = self.folder / "plan.lua"
        plan.write_text(MODEL.format(steps=12))
        return plan

    def test_data_that_are_not_finite(self):
        plan = self.arrays([10])
        done, rows = self.run_plan(plan, 2, "--check-finite", "--non-finite", "skip")
        [step] = [row["step"] for row in rows if row.get("skipped")]
        self.assertRegex(done.stderr, rf"prun: rank [01]: \w+ .* makes an? (NaN|infinity) in \S+ at step {step}; ")
        self.assertEqual([event["step"] for event in self.events("skipped")], [step])
        self.assertIn("skipped    1 step, as gradients were not finite\n", done.stdout + done.stderr)
        queue = self.losses(plan, 2, "--device", "cpu-queue", "--non-finite", "skip")
        finite = [(a["loss"], b) for a, b in zip(rows, queue, strict=True) if a["loss"] is not None]
        self.assertEqual(len(finite), 11)
        for a, b in finite:
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(b))

    def test_going_back_meets_other_data(self):
        plan = self.arrays([10, 50])
        ck = ["--checkpoint", self.folder / "ck", "--checkpoint-every", 1]
        done, rows = self.run_plan(plan, 2, "--non-finite", "rollback", "--max-restarts", 2, *ck)
        self.assertEqual([row["step"] for row in rows], list(range(1, 13)))
        self.assertTrue(all(row["loss"] is not None for row in rows))
        left_out = [int(batch) for batch in re.findall(r"without batch (\d+)\n", done.stderr)]
        self.assertTrue(1 <= len(left_out) <= 2, done.stderr)
        bad = [row["step"] for row in self.run_plan(plan, 2, "--non-finite", "skip")[1] if row.get("skipped")]
        self.assertEqual(left_out, bad[:len(left_out)])

    def test_the_budget_ends(self):
        plan = self.arrays(range(80))
        ck = ["--checkpoint", self.folder / "ck", "--checkpoint-every", 1]
        done, _ = self.run_plan(plan, 2, "--non-finite", "rollback", "--max-restarts", 2, *ck, code=20)
        self.assertEqual(done.stderr.count("prun: restart"), 2, done.stderr)
        self.assertIn("from the beginning without batch 1\n", done.stderr)
        self.assertIn("from the beginning without batch 2\n", done.stderr)
        self.assertRegex(done.stderr, r"prun: rank \d: the norm of all gradients is (NaN|infinite) in step 1; --check-finite names the op")

    def test_skips_end_after_ten_in_a_row(self):
        plan = self.arrays(range(80))
        done, rows = self.run_plan(plan, 2, "--non-finite", "skip", code=20)
        self.assertRegex(done.stderr, r"prun: rank \d: 10 steps in a row had gradients that are not finite, the last one 10; ")
        self.assertEqual(len(rows), 10)
        self.assertRegex(done.stderr, r"prun: step 8 updated nothing: the norm of its gradients is (NaN|infinite) \(8 steps so far\)\n")
        self.assertNotIn("prun: step 7 updated", done.stderr)

    def linear(self, loss, size):
        npy(self.folder / "x.npy", [[size] * 8] * 8)
        npy(self.folder / "y.npy", [[0.0]] * 8)
        plan = self.folder / "linear.lua"
        plan.write_text(LINEAR.format(loss=loss, files='x = "x.npy"' + (', y = "y.npy"' if loss == "mse" else "")))
        return plan

    def test_squares_that_no_f32_holds_are_in_the_norm(self):
        """Trains 8 weights whose gradients are all `size`; a clipped step moves each by lr along the gradient."""
        for size in (1e19, 1e38, 1e-25):
            for strategy, ranks in (("ddp", 1), ("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 2)):
                if size != 1e19 and strategy != "zero1":
                    continue
                with self.subTest(size=size, strategy=strategy, ranks=ranks):
                    done, rows = self.run_plan(self.linear("mean", size), ranks, strategy=strategy)
                    self.assertNotIn("norm", done.stderr)
                    norm = size * 8 ** 0.5
                    for row in rows:
                        known = row["grad_norm"] if "grad_norm" in row else row["report"]["layer0"]["grad_norm"]
                        self.assertAlmostEqual(known / norm, 1, delta=1e-6)
                    if size < 1:
                        continue
                    losses = [row["loss"] for row in rows if "loss" in row]
                    self.assertAlmostEqual((losses[0] - losses[1]) / (0.5 * norm), 1, delta=1e-4)

    def test_the_first_norm_that_is_not_finite_is_reported_once(self):
        done, rows = self.run_plan(self.linear("mse", 2.5e19), 1)
        self.assertEqual(done.stderr, "prun: the norm of the gradients of step 1 is infinite, so clipping leaves 0 or NaN of each "
                         "gradient: --check-finite ends the run at the op that makes the first NaN or infinity\n")
        self.assertIsNotNone(next(row["loss"] for row in rows if row["step"] == 1 and "loss" in row))
        done, rows = self.run_plan("plans/zero1.lua", 2, "--chaos", NAN.format(0), **SMALL)
        self.assertEqual(done.stderr.count("--check-finite"), 1)
        self.assertIn("prun: the norm of the gradients of step 3 is NaN, so nothing is clipped: --check-finite", done.stderr)

    def test_stop_is_check_finite(self):
        done, _ = self.run_plan(self.arrays(range(80)), 2, "--non-finite", "stop", code=20)
        self.assertRegex(done.stderr, r"prun: rank \d: \w+ .* makes an? (NaN|infinity) in \S+ at step 1; ")

    def test_the_op_is_named_before_going_back(self):
        ck = ["--checkpoint", self.folder / "ck", "--checkpoint-every", 1]
        done, rows = self.run_plan(self.arrays([10]), 2, "--check-finite", "--non-finite", "rollback", "--max-restarts", 1, *ck)
        self.assertRegex(done.stderr, r"prun: rank \d: \w+ .* makes an? (NaN|infinity) in \S+ at step \d+; ")
        self.assertEqual(len(rows), 12)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
