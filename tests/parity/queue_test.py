#!/usr/bin/env python3
"""Plans on queue devices. The CPU behind the device ABI gives bitwise the results of the CPU device, also when
captured, staged or traced. The cuda device on its substitute gives the same losses over every transport, and those of
the CPU up to rounding.
Usage: queue_test.py PRUN [SUBSTITUTES]    SUBSTITUTES: the folder of devices/cuda.so and libnccl_2_28.so
"""
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
SUBSTITUTES = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

SMALL = dict(layers=2, width=32, heads=2, context=16, batch=8, steps=5, reduce="rank_order")
ENVIRONMENT = dict(os.environ)
if SUBSTITUTES:
    ENVIRONMENT.update(PRUN_DEVICE_PATH=str(SUBSTITUTES / "devices"), PRUN_SUBSTITUTE_MEMORY_MIB="512")

NAN = """
local prun = require "prun"
local arg = prun.args { rank = 0 }
return prun.program(function(r)
  local x = prun.tensor { r.rank == arg.rank and 0/0 or 1, r.rank }
  prun.all_reduce(x, "max")
  prun.print("max", x)
end)
"""


def run_plain(plan, nproc, device, *more, **settings):
    """Returns the completed process; settings in capitals configure the substitutes."""
    theirs = {f"PRUN_SUBSTITUTE_{name}": str(value) for name, value in settings.items() if name.isupper()}
    ours = {name: value for name, value in settings.items() if not name.isupper()}
    return program_text.run(PRUN, plan, "--nproc", nproc, "--device", device, *more, env=ENVIRONMENT | theirs, **ours)


def run(plan, nproc, device, *more, **settings):
    """Returns the losses of all steps and evaluations."""
    steps = program_text.steps(PRUN, plan, nproc, "--device", device, *more, env=ENVIRONMENT, **settings)
    return [(step["loss"], step.get("eval_loss")) for step in steps]


def nccl(version="2_28", *more):
    library = SUBSTITUTES / f"libnccl_{version}.so"
    return ("--transport", "nccl", "--transport-options", ",".join([f"library={library}", f"cudart={library}", *more]))


def shared(version="2_28"):
    """Returns the options of ranks that share one GPU, over NCCL."""
    return (*nccl(version, "nccl.share=1"), "--ranks-per-device", "2")


class CpuQueue(unittest.TestCase):
    def same(self, plan, nproc, *more, **settings):
        self.assertEqual(run(plan, nproc, "cpu-queue", *more, **settings), run(plan, nproc, "cpu", *more, **settings))

    def test_one_rank_is_one_graph(self):
        self.same("plans/single.lua", 1, **{k: v for k, v in SMALL.items() if k != "reduce"})

    def test_collectives_are_staged_beside_compute(self):
        for transport in ("shm", "socket"):
            self.same("plans/zero3.lua", 2, "--transport", transport, **SMALL)

    def test_large_sums_go_in_chunks(self):
        self.same("plans/ddp.lua", 2, "--transport", "shm", **{**SMALL, "layers": 1, "width": 512, "steps": 3})

    def test_evaluations_and_clipping(self):
        self.same("tests/parity/gpt.lua", 2, strategy="zero3", eval=2, clip=1, steps=6)

    def test_reports_are_the_same_wherever_ranks_and_bodies_run(self):
        def reports(nproc, device, strategy):
            objects = program_text.steps(PRUN, "tests/parity/gpt.lua", nproc, "--device", device, strategy=strategy, report=2, **SMALL)
            return [one for one in objects if "report" in one]
        one, two, queued = reports(1, "cpu", "single"), reports(2, "cpu", "zero3"), reports(2, "cpu-queue", "zero3")
        self.assertEqual([report["step"] for report in one], [2, 4])
        self.assertEqual(queued, two)
        for a, b in zip(one, two, strict=True):
            self.assertEqual(list(a["report"]), list(b["report"]))
            for unit, norms in a["report"].items():
                for name in ("param_norm", "grad_norm"):
                    self.assertAlmostEqual(norms[name], b["report"][unit][name], delta=1e-3 * norms[name])

    def test_messages_between_stages(self):
        self.same("plans/one_sided.lua", 2, **{**SMALL, "reduce": "any"})

    def test_kernels_that_ask_for_their_rank_s_share(self):
        self.same("plans/ring_attention.lua", 2, **{**SMALL, "reduce": "any"})

    def test_host_ops_between_others(self):
        self.same("plans/collectives.lua", 2)

    def test_a_trace_has_every_op_and_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = f"{folder}/trace.json"
            plain, traced = (run("plans/zero3.lua", 2, "cpu-queue", *more, **SMALL) for more in ([], ["--trace", trace]))
            self.assertEqual(plain, traced)
            document = json.loads(pathlib.Path(trace).read_text())
            self.assertIn("ops were enqueued one by one", document["otherData"]["prun"])
            run("plans/zero3.lua", 2, "cpu", "--trace", trace, **SMALL)
            self.assertNotIn("otherData", json.loads(pathlib.Path(trace).read_text()))
            events = document["traceEvents"]
            ops = [e for e in events if e.get("ph") == "X" and e.get("cat") != "wait" and e["pid"] == 0 and e["args"]["step"] == 2]
            self.assertGreater(len({e["args"]["op"] for e in ops if e["tid"] == 0}), 20)
            self.assertGreater(len([e for e in ops if e["tid"] != 0]), 5)  # communication
            for tid in {e["tid"] for e in ops}:
                ends = 0
                for e in sorted((e for e in ops if e["tid"] == tid), key=lambda e: e["args"]["op"]):
                    self.assertGreaterEqual(e["ts"], ends - 0.01)
                    ends = e["ts"] + e["dur"]


class Cuda(unittest.TestCase if SUBSTITUTES else object):  # without a CUDA Toolkit (CMake prints that) there are no substitutes
    def close(self, plan, nproc, *more, cpu=(), **settings):
        found, wanted = run(plan, nproc, "cuda", *more, **settings), run(plan, nproc, "cpu", *cpu, **settings)
        self.assertEqual(len(found), len(wanted))
        for (loss, evaluated), (expected, expected_evaluated) in zip(found, wanted):
            self.assertAlmostEqual(loss, expected, delta=2e-4 * abs(expected))
            if expected_evaluated is not None:
                self.assertAlmostEqual(evaluated, expected_evaluated, delta=2e-4 * abs(expected_evaluated))
        return found

    def test_one_rank(self):
        settings = {k: v for k, v in SMALL.items() if k != "reduce"}
        self.assertEqual(self.close("plans/single.lua", 1, **settings), run("plans/single.lua", 1, "cuda", **settings))

    def test_gradients_of_microbatches_accumulate(self):
        shm = ("--transport", "shm")
        one = {k: v for k, v in SMALL.items() if k != "reduce"}
        for plan, nproc, settings in (("single", 1, one), ("ddp", 2, SMALL), ("zero2", 2, SMALL), ("zero3", 2, SMALL),
                                      ("1f1b", 2, SMALL), ("zero_bubble", 2, SMALL)):
            with self.subTest(plan=plan):
                transport = shm if nproc > 1 else ()
                self.close(f"plans/{plan}.lua", nproc, *transport, cpu=transport, **{**settings, "steps": 3, "micro": 4})

    def test_later_microbatches_add_to_the_gradient_in_the_product(self):
        dump = program_text.run(PRUN, "dump", "plans/ddp.lua", "--nproc", 2, "--device", "cuda", check=True, env=ENVIRONMENT,
                                **{**SMALL, "micro": 4})
        ops = program_text.read_step(dump.stdout)["compute"]
        made = {m: [op for op in ops if op.kind.startswith("linear_dw") and op.microbatch == m] for m in range(4)}
        self.assertEqual({m: {op.kind for op in made[m]} for m in made},
                         {0: {"linear_dw"}, 1: {"linear_dw_add"}, 2: {"linear_dw_add"}, 3: {"linear_dw_add"}})
        for m in range(1, 4):
            self.assertEqual(len(made[m]), 4 * SMALL["layers"] + 1)
            for first, later in zip(made[0], made[m], strict=True):
                written = [name for name in later.writes if name != "scratch"]
                self.assertEqual(written, [name for name in first.writes if name != "scratch"])
                self.assertEqual(later.reads[2:], written)
        added = {op.writes[0] for op in ops if op.kind == "add" and op.phase == "backward"}
        self.assertFalse(added & {name for op in made[0] for name in op.writes}, "no add of its own")

    def test_bf16(self):
        settings = {**SMALL, "dtype": "bf16"}
        for (loss, _), (expected, _) in zip(run("plans/zero3.lua", 1, "cuda", **settings), run("plans/zero3.lua", 1, "cpu", **settings)):
            self.assertAlmostEqual(loss, expected, delta=2e-2 * abs(expected))

    def test_optimizers_of_matrices(self):
        for groups in ("muon", "adafactor"):
            self.close("tests/parity/groups.lua", 1, groups=groups)
            self.close("tests/parity/groups.lua", 2, *nccl(), cpu=("--transport", "shm"), groups=groups, strategy="zero3")

    def test_muon_of_a_bf16_plan_multiplies_in_tf32(self):
        for dtype, number in (("bf16", 1), ("f32", 0)):
            dump = program_text.run(PRUN, "dump", "tests/parity/groups.lua", "--nproc", 1, "--device", "cuda", check=True, env=ENVIRONMENT,
                                    groups="muon", dtype=dtype).stdout
            ops = [line for line in dump.splitlines() if " orthogonalize " in line]
            self.assertTrue(ops, dump)
            self.assertEqual([line.count("tf32=1") for line in ops], [number] * len(ops))

    def test_staged_and_enqueued_collectives_agree(self):
        staged = self.close("plans/zero3.lua", 2, "--transport", "shm", cpu=("--transport", "shm"), **SMALL)
        any_order = {**SMALL, "reduce": "any"}
        enqueued = self.close("plans/zero3.lua", 2, *nccl(), cpu=("--transport", "shm"), **any_order)
        self.assertEqual(staged, enqueued)  # two ranks have only one order of reduction

    def test_ranks_that_share_a_gpu_over_nccl_give_the_same_losses(self):
        settings = {**SMALL, "reduce": "any"}
        apart = run("plans/zero3.lua", 2, "cuda", *nccl(), **settings)
        for version in ("2_28", "2_30"):
            steps = program_text.steps(PRUN, "plans/zero3.lua", 2, "--device", "cuda", *shared(version),
                                       env=ENVIRONMENT | {"PRUN_SUBSTITUTE_DEVICES": "1"}, **settings)
            self.assertEqual([step["loss"] for step in steps], [loss for loss, _ in apart])

    def test_averages_over_three_ranks_are_nccls(self):
        self.close("plans/ddp_simple.lua", 3, *nccl(), cpu=("--transport", "shm"))

    def test_a_maximum_keeps_a_nan(self):
        """NCCL's max drops a NaN, so the host reduces."""
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder, "nan.lua")
            plan.write_text(NAN)
            for rank in (0, 1):
                done = run_plain(plan, 2, "cuda", "--quiet", *nccl(), rank=rank)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.replace("-nan", "nan").splitlines(), ["max [nan, 1]"] * 2)

    def test_the_summary_says_who_took_the_device_s_memory(self):
        done = run_plain("plans/ddp_simple.lua", 2, "cuda", *nccl(), COMM_MIB=20, CONTEXT_MIB=30)
        self.assertEqual(done.returncode, 0, done.stderr)  # one communicator of the plan, one of all ranks
        self.assertRegex(done.stdout, r"\non device  .* arena, 40\.0 MiB transports, .* kernels, 30\.0 MiB before them \(contexts\); .* of 512\.0 MiB left\n")

    def test_ranks_on_several_models_are_told(self):
        done = run_plain("plans/ddp_simple.lua", 3, "cuda", OTHER=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"not all ranks compute alike: ranks 0 and 1 on substitute of a GPU \(sm_90\) with cuBLASLt \S.*, "
                                      r"rank 2 on substitute of another GPU \(sm_80\) with cuBLASLt .*; what several of them compute may differ")
        self.assertEqual(done.stderr.count("compute alike"), 1, done.stderr)
        self.assertNotIn("compute alike", run_plain("plans/ddp_simple.lua", 2, "cuda", OTHER=2).stderr)

    def test_an_error_in_a_replayed_step_is_asked_for(self):
        # No thread tests a request then; unless prun polls NCCL, only the deadline detects the failure (exit code 11).
        done = run_plain("plans/zero3.lua", 2, "cuda", *nccl(), FAIL_RUN=60, **{**SMALL, "layers": 1, "steps": 1000, "reduce": "any"})
        self.assertEqual(done.returncode, 17, done.stderr)
        self.assertIn("prun: the link between rank 0 and rank 1 is lost; both still ran", done.stderr)
        self.assertIn("rank 0: collectives of ranks 0, 1 over nccl: rank 1: in a replayed step: remote process exited", done.stderr)
        self.assertIn(": a graph of it, replayed by the device", done.stderr)
        self.assertEqual(done.stderr.count("prun: "), 1, done.stderr)

    def test_rows_of_experts_stay_on_the_device(self):
        """Over shm the rows pass through host memory, over NCCL only their counts do."""
        settings = {**SMALL, "reduce": "any", "experts": 8, "dropless": True, "capacity": 0.5}
        for nproc, transport in ((2, nccl()), (2, nccl("2_18")), (2, ("--transport", "shm")), (4, nccl())):
            with self.subTest(nproc=nproc, transport=transport):
                self.close("plans/moe.lua", nproc, *transport, cpu=("--transport", "shm"), **settings)

        def sent(device, folder):
            done = run_plain("plans/moe.lua", 2, device, "--transport", "shm", "--trace", f"{folder}/{device}.json", **settings)
            return re.search(r"\nsent +(.*) a rank and step", done.stdout).group(1)
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(sent("cuda", folder), sent("cpu", folder))  # other rows in each step

    def test_a_ring_of_messages(self):
        settings = {**SMALL, "reduce": "any"}
        self.close("plans/ring_attention.lua", 2, *nccl(), cpu=("--transport", "shm"), **settings)

    def test_messages_of_a_step_that_host_ops_divide(self):
        """A graph would wait for a receive whose send the peer's graph has behind the same wait."""
        mesh = {"mesh": "cp=2", "list": "context_parallel cp"}
        self.close("tests/parity/losses.lua", 2, *nccl(), "--timeout", "20", cpu=("--transport", "shm"), **mesh)


del sys.argv[1:]
if __name__ == "__main__":
    unittest.main()
