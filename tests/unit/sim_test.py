"""prun sim: what it says must follow from the program and the cluster, whatever ranks stand for others."""
import json
import pathlib
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
    """A cluster file that includes the A100's and changes some of it."""

    def __init__(self, text):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.file.write(f"include: {ROOT / A100}\n{text}")
        self.file.flush()

    def __enter__(self):
        return self.file.name

    def __exit__(self, *_):
        self.file.close()


JOBS = [("ddp", 16, []), ("zero3", 32, []), ("3d", 64, settings(tp=4, pp=4, layers=8)),
        ("megatron", 8, settings(tp=4)), ("interleaved", 8, settings(pp=4, chunks=2, layers=8)),
        ("zero_bubble", 4, settings(pp=4)), ("ring_attention", 8, []), ("one_sided", 4, settings(pp=4)), ("moe", 8, [])]


class Sim(unittest.TestCase):
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

    def test_peak_memory_is_the_arena(self):
        for plan, ranks, words in JOBS:
            with self.subTest(plan):
                checked = json.loads(prun("check", f"plans/{plan}.lua", "--nproc", ranks, "--json", *words))
                simulated = sim(plan, ranks, *words)
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

    def test_the_answer_is_the_same_every_time(self):
        texts = {prun("sim", "plans/3d.lua", "--cluster", A100, "--nproc", 16, "--json") for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_text(self):
        text = prun("sim", "plans/zero3.lua", "--cluster", A100, "--nproc", 8)
        for words in ("simulated for 8 ranks (dp=8) on DGX A100", "step", "% of the peak", "exposed communication",
                      "bubble", "over NVLink", "peak, limited by"):
            self.assertIn(words, text)

    def test_every_cluster_file_is_read(self):
        for path in sorted((ROOT / "plans/clusters").glob("*.yaml")):
            with self.subTest(path.name):
                self.assertGreater(sim("ddp", 2, cluster=path)["step_s"], 0)


if __name__ == "__main__":
    PRUN = sys.argv.pop(1)
    unittest.main()
