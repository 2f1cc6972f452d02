"""prun sim: its output follows from the program and the cluster, no matter which ranks represent others."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
A100 = "plans/clusters/dgx-a100.yaml"


def prun(*words):
    done = subprocess.run([PRUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr}")
    return done.stdout


def sim(plan, ranks, *words, cluster=A100):
    text = prun("sim", f"plans/{plan}.lua", "--cluster", cluster, "--nproc", ranks, "--json", *words)
    assert text.count("\n") == 1, text
    return json.loads(text)


def settings(**arguments):
    return [word for name, value in arguments.items() for word in ("--set", f"{name}={value}")]


class Cluster:
    """A cluster file that includes dgx-a100.yaml and overrides parts of it."""

    def __init__(self, text):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.file.write(f"include: {ROOT / A100}\n{text}")
        self.file.flush()

    def __enter__(self):
        return self.file.name

    def __exit__(self, *_):
        self.file.close()


MIXTURE = """
local prun = require "prun"
local arg = prun.args { tp = { 1, "ranks that split the attention" }, capacity = { math.huge, "of an expert" } }
return prun.plan {
  mesh = prun.mesh { tp = arg.tp },
  model = prun.models.moe { vocab = 256, layers = 2, width = 64, heads = 4, context = 32, experts = 8, choices = 2,
                            capacity = arg.capacity },
  data = prun.data.bytes { path = "text/sample.txt", batch = 4 },
  strategy = { prun.tensor_parallel { axis = "tp" } },
  optimizer = prun.adamw { lr = 1e-3 }, steps = 1,
}
"""


JOBS = [("ddp", 16, []), ("zero3", 32, []), ("3d", 64, settings(tp=4, pp=4, layers=8)),
        ("megatron", 8, settings(tp=4)), ("interleaved", 8, settings(pp=4, chunks=2, layers=8)),
        ("zero_bubble", 4, settings(pp=4)), ("ring_attention", 8, []), ("one_sided", 4, settings(pp=4)), ("moe", 8, [])]


class Sim(unittest.TestCase):
    def test_causal_attention_computes_whole_blocks_on_the_diagonal(self):
        def seconds(kind, cluster, context, batch):
            given = sim("gpt", 1, "--whole", *settings(width=4096, heads=32, flash="true", context=context, micro_size=batch, batch=batch),
                        cluster=cluster)
            return given["classes"][0]["op_s"][kind] - 4 * 4e-6  # four layers, each with a launch
        with Cluster("device: { flash: 1 }") as ideal:
            for cluster, growth, backward in ((A100, (1 + 128 / 4096) / (1 + 128 / 1024), 2.5 * 73 / 63), (ideal, 1, 2.5)):
                few, many, back = (seconds(kind, cluster, *shape) for kind, shape in (
                    ("attention", (1024, 4)), ("attention", (4096, 1)), ("attention_grad", (4096, 1))))
                self.assertAlmostEqual(many / few, 4 * growth, 3)
                self.assertAlmostEqual(back / many, backward, 3)

    def test_overlapped_transfers_take_multiprocessors(self):
        def step(channels):
            with Cluster(f"bus: {{ channels: {channels} }}\n") as cluster:
                return sim("zero3", 8, *settings(width=2048, context=1024, batch=64), cluster=cluster)["step_s"]
        self.assertLess(step(16), step(54))

    def test_stages_have_the_listed_layers(self):
        given = sim("gpt", 4, *settings(pp=4, layers=16, stages="3,4,6,3"), "--extrapolate")
        _, four, six, _ = (each["peak_roles"]["param"] for each in given["classes"])
        self.assertAlmostEqual(six / four, 6 / 4, 3)

    def test_a_rank_stands_for_all_of_its_class(self):
        for plan, ranks, words in JOBS:
            with self.subTest(plan):
                of_classes, of_ranks = sim(plan, ranks, *words), sim(plan, ranks, *words, "--every-rank")
                self.assertEqual(of_classes["step_s"], of_ranks["step_s"])
                self.assertEqual(len(of_ranks["classes"]), ranks)
                self.assertLessEqual(len(of_classes["classes"]), ranks)
                for each in of_classes["classes"]:
                    alike = of_ranks["classes"][each["first_rank"]]
                    self.assertEqual(each["idle_s"], alike["idle_s"])

    def test_a_slow_device_splits_its_class_and_slows_the_step(self):
        with Cluster("nodes:\n  - {}\n  - { slow: { 3: 0.5 } }\n") as slow:
            for words in ([], ["--every-rank"]):
                with self.subTest(words=words):
                    self.assertGreater(sim("ddp", 16, *words, cluster=slow)["step_s"], 1.3 * sim("ddp", 16)["step_s"])
            self.assertEqual(sim("3d", 16, cluster=slow)["step_s"], sim("3d", 16, "--every-rank", cluster=slow)["step_s"])

    def test_devices_that_differ_in_anything_are_told_apart(self):
        for field in ("launch: 400 us", "sustained: 0.1", "memory: 1 GiB"):
            with self.subTest(field), Cluster("nodes:\n  - {}\n  - { device: { %s } }\n" % field) as mixed:
                some, each = (sim("ddp", 16, *words, cluster=mixed) for words in ([], ["--every-rank"]))
                self.assertEqual((len(some["classes"]), some["step_s"]), (2, each["step_s"]))

    def test_jitter_makes_steps_a_distribution(self):
        words = settings(tp=2, pp=2, layers=4)
        with Cluster("device: { jitter: 0.1 }\n") as jittery:
            drawn = sim("3d", 8, *words, "--steps", 40, cluster=jittery)
            steps = drawn["steps"]
            self.assertEqual(drawn["step_s"], sim("3d", 8, *words)["step_s"])  # the step without jitter
            self.assertEqual(steps["count"], 40)
            self.assertLess(drawn["step_s"], steps["median_s"])  # a step waits for the slowest of its ranks
            self.assertLess(steps["median_s"], steps["p90_s"])
            self.assertLess(steps["p90_s"], steps["p99_s"])
            self.assertEqual(steps, sim("3d", 8, *words, "--steps", 40, cluster=jittery)["steps"])
            self.assertNotEqual(steps, sim("3d", 8, *words, "--steps", 40, "--seed", 1, cluster=jittery)["steps"])
            self.assertIn("with jitter, 3 steps", prun("sim", "plans/3d.lua", "--cluster", jittery, "--nproc", 8, *words,
                                                       "--steps", 3))

    def test_without_jitter_all_steps_are_the_same(self):
        for plan, ranks, words in JOBS:
            with self.subTest(plan):
                step = sim(plan, ranks, *words, "--steps", 2)
                for name in ("median_s", "p90_s", "p99_s"):
                    self.assertEqual(step["steps"][name], step["step_s"])

    def test_peak_memory_is_the_arena(self):
        for plan, ranks, words in JOBS:
            with self.subTest(plan):
                checked = json.loads(prun("check", f"plans/{plan}.lua", "--nproc", ranks, "--json", *words))
                simulated = sim(plan, ranks, *words)
                for each in simulated["classes"]:
                    arena = checked["classes"][checked["class_of_rank"][each["first_rank"]]]["arena_bytes"]
                    self.assertEqual(each["peak_bytes"], arena)

    def test_extended_peak_memory_is_the_arena(self):
        jobs = [("1f1b", 4, dict(pp=4, layers=24, micro=40, batch=40)),  # rings of buffers
                ("1f1b", 16, dict(pp=16, layers=32, micro=80, batch=80)),  # with few ranks packed
                ("1f1b", 4, dict(pp=4, layers=8, micro=333, batch=333)),  # with fewer microbatches compiled
                ("ddp", 4, dict(layers=4, micro=257, batch=1028)),
                ("zero_bubble", 4, dict(pp=4, layers=8, micro=36, batch=36)),
                ("zero_bubble", 6, dict(pp=6, layers=12, micro=190, batch=190)),
                ("interleaved", 3, dict(pp=3, chunks=2, layers=12, micro=180, batch=180)),
                ("3d", 16, dict(tp=2, pp=4, layers=16, micro=40, batch=80)),
                ("interleaved", 8, dict(pp=4, chunks=2, layers=16, micro=64, batch=128)),
                ("zero3", 4, dict(layers=12, micro=64, batch=256)),
                ("ddp", 4, dict(layers=12, micro=64, batch=256))]
        for plan, ranks, arguments in jobs:
            with self.subTest(plan, **arguments):
                words = settings(**arguments, width=64)
                checked = json.loads(prun("check", f"plans/{plan}.lua", "--nproc", ranks, "--json", *words))
                simulated = sim(plan, ranks, *words, "--extrapolate")
                self.assertEqual(simulated["classes"][0]["op_s"], {})  # the result was extrapolated
                for each in simulated["classes"]:
                    arena = checked["classes"][checked["class_of_rank"][each["first_rank"]]]["arena_bytes"]
                    self.assertEqual(each["peak_bytes"], arena)

    def test_more_ranks_on_free_links_take_as_long(self):
        free = ("bus: { bandwidth: 1e12 TB/s, step: 0 s, tree_step: 0 s }\n"
                "network: { bandwidth: 1e12 TB/s, step: 0 s, tree_step: 0 s }\ncollective: 0 s\n")
        with Cluster(free) as cluster:
            few, many = (sim("ddp", n, *settings(batch=4 * n), cluster=cluster)["step_s"] for n in (8, 16))
        self.assertAlmostEqual(few / many, 1, 6)

    def test_the_topology_changes_the_answer(self):
        step = sim("zero3", 16)["step_s"]
        for change in ("network: { bandwidth: 12 GB/s }", "node: { nics: 1 }", "node: { devices: 4 }",
                       "nodes:\n  - {}\n  - { network_speed: 0.5 }"):
            with self.subTest(change), Cluster(change + "\n") as cluster:
                self.assertGreater(sim("zero3", 16, cluster=cluster)["step_s"], step)

    def test_what_repeats_is_simulated_once(self):
        jobs = [("1f1b", 8, dict(pp=8, layers=16, micro=16, batch=32, width=64), 1e-3),
                ("interleaved", 6, dict(pp=6, chunks=2, layers=24, micro=36, batch=72, width=64), 1e-12),
                ("zero3", 4, dict(layers=12, micro=8, batch=64), 1e-12),
                ("ddp", 16, dict(layers=16, micro=6, batch=192), 1e-12),
                ("3d", 48, dict(pp=6, tp=2, layers=24, micro=12, batch=96), 1e-12),
                ("zero_bubble", 6, dict(pp=6, layers=24, micro=16, batch=32), 1e-3),
                ("interleaved", 2, dict(pp=2, chunks=2, layers=8, micro=25, batch=25, width=64), 1e-3)]
        for plan, ranks, arguments, most in jobs:
            with self.subTest(plan):
                words = settings(**arguments)
                few, whole = sim(plan, ranks, *words, "--extrapolate"), sim(plan, ranks, *words, "--whole")
                self.assertAlmostEqual(few["step_s"] / whole["step_s"], 1, delta=most)
                self.assertAlmostEqual(few["tflops_per_device"] / whole["tflops_per_device"], 1, delta=most)
                self.assertAlmostEqual(few["bubble"], whole["bubble"], delta=5e-3)
                self.assertEqual(len(few["classes"]), len(whole["classes"]))
                for a, b in zip(few["classes"], whole["classes"]):
                    self.assertEqual(a["peak_roles"], b["peak_roles"])
                    self.assertEqual(sum(a["peak_roles"].values()), a["peak_bytes"])
                text = prun("sim", f"plans/{plan}.lua", "--cluster", A100, "--nproc", ranks, "--extrapolate", *words)
                self.assertIn("repeats", text)

    def test_interleaved_steps_with_any_number_of_microbatches(self):
        for stages, chunks, layers, micro, more in [(5, 3, 1, 34, {}), (4, 2, 4, 47, {}), (3, 4, 3, 37, dict(recompute="full")),
                                                    (5, 2, 2, 53, dict(zero=1)), (4, 3, 3, 49, dict(overlap=0, tp=2))]:
            arguments = dict(pp=stages, chunks=chunks, layers=stages * chunks * layers, batch=micro, width=1024, heads=8, **more)
            ranks = stages * arguments.get("tp", 1)
            with self.subTest(**arguments):
                few, whole = (sim("gpt", ranks, *settings(**arguments), how) for how in ("--extrapolate", "--whole"))
                self.assertAlmostEqual(few["step_s"] / whole["step_s"], 1, delta=1e-3)
                for name in ("exposed_comm_s", "tflops_per_device", "bubble"):
                    self.assertAlmostEqual(few[name], whole[name], delta=5e-3 * max(whole[name], whole["step_s"]))
                    self.assertGreaterEqual(few[name], 0)

    def test_stages_of_equal_flops_are_not_extrapolated(self):
        arguments = dict(pp=4, layers=16, batch=32, vocab=32768, width=128)
        few, whole, layers = (sim("gpt", 4, *settings(**arguments, split=split), how) for split, how in (
            ("flops", "--extrapolate"), ("flops", "--whole"), ("layers", "--whole")))
        self.assertEqual(few, whole)
        self.assertLess(whole["step_s"], layers["step_s"])  # the head is as much work as many layers

    def test_measured_steps_of_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as rows:
            step = sim("gpt", 2, *settings(layers=2, tp=2))["step_s"]
            rows.write(f"# name, ranks, seconds, arguments\nmine 2 {2 * step} layers=2 tp=2\n")
            rows.flush()
            tool = [sys.executable, "tools/bench/simulate.py", PRUN, "--rows", rows.name]
            done = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"(?m)^all +mean 50\.0 %, largest 50\.0 %, mean with sign -50\.0 %$")
            rows.write("mine two\n")
            rows.flush()
            done = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, timeout=60)
            self.assertIn(f"{rows.name}:3: a row is NAME RANKS SECONDS", done.stderr)

    def test_no_data_are_needed(self):
        words = settings(layers=2, flash=1, data="none.txt", context=1 << 20)
        self.assertGreater(sim("gpt", 8, *words)["step_s"], 0)
        short = settings(layers=2, flash=1, context=1 << 20)
        for done in (subprocess.run([PRUN, "check", "plans/gpt.lua", "--nproc", "8", *each], cwd=ROOT, capture_output=True,
                                    text=True, timeout=60) for each in (words, short)):
            self.assertEqual(done.returncode, 3)
            self.assertRegex(done.stderr, "no file 'none.txt'|one sample needs 1048577")
        self.assertEqual(sim("gpt", 8, *words), sim("gpt", 8, *short))
        done = subprocess.run([PRUN, "sim", "plans/gpt.lua", "--cluster", A100, "--nproc", "8", *settings(batch=800)], cwd=ROOT,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")  # the number of samples does not matter

    def test_model_flops_of_a_mixture_are_those_of_routed_tokens(self):
        layers, width, context, batch, experts, choices = 2, 64, 32, 4, 8, 2
        dense = layers * 4 * width * width + 256 * width
        routed = layers * (8 * choices * width * width + experts * width)
        attention = 6 * layers * width * context * batch * context  # causal: half of PaLM's 12·L·d·T
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write(MIXTURE)
            file.flush()
            for ranks, capacity in [(1, "inf"), (1, 2), (2, "inf"), (4, 1)]:
                with self.subTest(ranks=ranks, capacity=capacity):
                    found = json.loads(prun("sim", file.name, "--cluster", A100, "--nproc", ranks, "--json",
                                            *settings(tp=ranks, capacity=capacity)))
                    flops, again = (found[name] * 1e12 * ranks * found["step_s"]
                                    for name in ("tflops_per_device", "replicated_tflops_per_device"))
                    self.assertAlmostEqual(flops / (6 * (dense + routed) * batch * context + attention), 1, 9)
                    router = layers * experts * width  # tp splits the experts only
                    self.assertAlmostEqual(again / (6 * router * batch * context), ranks - 1, 9)

    def test_two_microbatches_at_once_hide_all_to_alls(self):
        # 16 ranks of ep are two nodes; small experts make their all-to-alls long.
        sizes = dict(pp=4, layers=16, width=4096, heads=32, context=4096, experts=64, choices=8, hidden=1408, capacity=1,
                     batch=256, micro=16, dtype="bf16")
        after, at_once = (sim("dualpipe", 64, *settings(schedule=schedule, **sizes), cluster="plans/clusters/dgx-h100.yaml")
                          for schedule in ("zb_v", "dualpipe_v"))
        self.assertLess(at_once["step_s"], 0.98 * after["step_s"])
        self.assertLess(at_once["exposed_comm_s"], 0.8 * after["exposed_comm_s"])
        self.assertEqual(at_once["bytes"], after["bytes"])

    def test_shards_that_a_node_keeps_are_not_gathered_between_nodes_again(self):
        shape = dict(layers=8, width=1024, heads=16, context=1024, batch=32, dtype="bf16", micro=2)
        all_ranks, nodes = (sim("fsdp", 16, *settings(replicate=groups, reshard_after_forward=reshard, **shape),
                                cluster="plans/clusters/dgx-h100.yaml") for groups, reshard in ((1, "true"), (2, "group")))
        self.assertLess(nodes["bytes"]["InfiniBand"], 0.4 * all_ranks["bytes"]["InfiniBand"])
        self.assertLess(nodes["step_s"], 0.9 * all_ranks["step_s"])

    def test_gathers_go_on_over_the_end_of_a_step(self):
        for plan in ("zero1", "zero3"):
            with self.subTest(plan), Cluster("device: { multiprocessors: 1 }") as cpus:
                goes_on, joins = sim(plan, 8, cluster=cpus), sim(plan, 8, "--device", "cpu-queue", cluster=cpus)
                self.assertLess(goes_on["step_s"], joins["step_s"])
                self.assertLess(goes_on["exposed_comm_s"], joins["exposed_comm_s"])
                self.assertEqual(goes_on["bytes"], joins["bytes"])
                # Ops that outlast a step delay the next one: on a slow link, no step is faster than its transfers.
                with Cluster("device: { multiprocessors: 1 }\nbus: { bandwidth: 1 GB/s }") as slow:
                    bound = sim(plan, 8, cluster=slow)
                seconds = bound["classes"][0]["op_s"]
                sends = sum(seconds[kind] for kind in ("all_gather", "all_reduce", "reduce_scatter"))
                self.assertGreater(bound["step_s"], sends)
                self.assertLess(bound["step_s"], 1.05 * sends)

    def test_gpus_join_their_steps(self):
        for plan in ("zero1", "zero3"):
            with self.subTest(plan):
                self.assertEqual(sim(plan, 8)["step_s"], sim(plan, 8, "--device", "cpu-queue")["step_s"])

    def test_sweep(self):
        words = settings(layers=4) + ["--sweep", "tp=1,2,3", "--sweep", "pp=1,2"]
        found = json.loads(prun("sim", "plans/3d.lua", "--cluster", A100, "--nproc", 8, "--json", *words))
        steps = [row["step_s"] for row in found["sweep"]]
        self.assertEqual(len(steps), 4)
        self.assertEqual(steps, sorted(steps))
        self.assertEqual([row["settings"]["tp"] for row in found["left_out"]], ["3", "3"])
        one = found["sweep"][0]
        self.assertEqual(sim("3d", 8, *settings(layers=4, **one["settings"]))["step_s"], one["step_s"])
        table = prun("sim", "plans/3d.lua", "--cluster", A100, "--nproc", 8, *words)
        self.assertIn("left out: tp=3 pp=1: plans/3d.lua", table)

    def test_what_does_not_fit_is_said_and_left_out(self):
        with Cluster("device: { memory: 50 MiB }\n") as small:
            done = subprocess.run([PRUN, "sim", "plans/ddp.lua", "--cluster", small, "--nproc", "2"], cwd=ROOT,
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stderr, r"it does not fit: rank 0 needs [\d.]+ MiB of a device's 50.0 MiB: .* too much")
            self.assertRegex(done.stderr, r"; the largest buffers: \S+ [\d.]+ MiB \(\w+, \S+\.lua:\d+\), ")
            self.assertFalse(sim("ddp", 2, cluster=small)["fits"])
            swept = json.loads(prun("sim", "plans/ddp.lua", "--cluster", small, "--nproc", 2, "--json", "--sweep", "width=32,512"))
            self.assertEqual([row["settings"]["width"] for row in swept["sweep"]], ["32"])

    def test_what_would_fit_is_said(self):
        with Cluster("device: { memory: 200 MiB }\n") as small:
            words = ["sim", "plans/gpt.lua", "--cluster", small, "--nproc", "2", *settings(layers=4, width=512, vocab=512)]
            done = subprocess.run([PRUN, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
            fitting = re.search(r"too much; ((?:--set \w+=\w+ )+)would fit, at [\d.]+ \w+ a step; prun tune", done.stderr)
            self.assertTrue(fitting, done.stderr)
            self.assertTrue(json.loads(prun(*words, "--json", *fitting[1].split()))["fits"])
        with Cluster("device: { memory: 2 MiB }\n") as tiny:
            words = ["sim", "plans/gpt.lua", "--cluster", tiny, "--nproc", "2"]
            done = subprocess.run([PRUN, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
            self.assertRegex(done.stderr, r"too much; (--set \w+=\w+ )+comes nearest, with about [\d.]+ MiB; more ranks")

    def test_trace(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            result = json.loads(prun("sim", "plans/3d.lua", "--cluster", A100, "--nproc", 8, "--json", "--trace", file.name))
            events = json.load(file)["traceEvents"]
        slices = [event for event in events if event["ph"] == "X"]
        self.assertEqual({event["pid"] for event in slices}, {each["first_rank"] for each in result["classes"]})
        self.assertAlmostEqual(max(event["ts"] + event["dur"] for event in slices), 1e6 * result["step_s"], delta=1)
        self.assertTrue(any(event["ph"] == "s" for event in events))

    def test_the_answer_is_the_same_every_time(self):
        texts = {prun("sim", "plans/3d.lua", "--cluster", A100, "--nproc", 16, "--json") for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_text(self):
        text = prun("sim", "plans/zero3.lua", "--cluster", A100, "--nproc", 8)
        for words in ("simulated for 8 ranks (dp=8) on DGX A100", "step", "% of the peak", "exposed communication",
                      "bubble", "over NVLink", "peak, limited by"):
            self.assertIn(words, text)

    def test_json(self):
        found = sim("zero3", 8)
        self.assertEqual(list(found), ["step_s", "tflops_per_device", "mfu", "replicated_tflops_per_device", "exposed_comm_s", "bubble", "peak_bytes", "fits",
                                       "bytes", "ranks", "classes"])
        self.assertEqual(list(found["bytes"]), ["NVLink", "InfiniBand"])
        self.assertEqual(list(found["classes"][0]), ["first_rank", "ranks", "peak_bytes", "idle_s", "limit", "op_s", "peak_roles"])
        for each in found["classes"]:
            self.assertEqual(sum(each["peak_roles"].values()), each["peak_bytes"])
        self.assertTrue(found["fits"])
        self.assertAlmostEqual(found["mfu"] * 156, found["tflops_per_device"], 6)  # f32
        self.assertEqual(found["peak_bytes"], [each["peak_bytes"] for each in found["classes"]])

    def test_every_cluster_file_is_read(self):
        for path in sorted((ROOT / "plans/clusters").glob("*.yaml")):
            with self.subTest(path.name):
                self.assertGreater(sim("ddp", 2, cluster=path)["step_s"], 0)


if __name__ == "__main__":
    PRUN = sys.argv.pop(1)
    unittest.main()
