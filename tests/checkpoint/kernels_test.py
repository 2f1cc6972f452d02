#!/usr/bin/env python3
"""A job's kernels determine the rounding of its results. They are chosen once for all ranks, stored in checkpoints, and
the same on nodes with different CPUs. ONEDNN_MAX_CPU_ISA makes this CPU a lesser one. Usage: kernels_test.py PRUN
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
SIZES = ["layers=2", "width=32", "heads=2", "context=16", "batch=8"]
LIMITS = {"any": "SSE41", "avx2": "AVX2", "avx512": "AVX512_CORE", "avx512+bf16": "AVX512_CORE_BF16", "avx512+pairs": "AVX512_CORE_BF16"}


def start(*words, limit=None):
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    if limit is not None:
        environment["ONEDNN_MAX_CPU_ISA"] = LIMITS[limit]
    return subprocess.Popen([PRUN, *map(str, words)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")


def end(process, code=0):
    out, err = process.communicate(timeout=100)
    if process.returncode != code:
        raise AssertionError(f"{process.args}: exit code {process.returncode}\n{err}")
    return out, err


def plan(name, steps, *settings):
    last = {setting.split("=")[0]: setting for setting in [*SIZES, f"steps={steps}", *settings]}
    return [f"plans/{name}.lua", *(word for setting in last.values() for word in ("--set", setting))]


def train(name, steps, *options, settings=(), limit=None, code=0):
    return end(start(*plan(name, steps, *settings), "--nproc", 2, *options, limit=limit), code)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        out, _ = train("ddp", 1, "--json", "--quiet")
        cls.most = json.loads(out.splitlines()[-1])["kernels"]
        if cls.most == "any":
            raise unittest.SkipTest("no CPU is less than this one")
        cls.less = "avx2" if cls.most.startswith("avx512") else "any"

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-kernels-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def at(self, name):
        return self.folder / name

    def kept(self, name, steps, *options, **more):
        folder = self.at(name)
        _, err = train("zero3", steps, "--checkpoint", folder, "--metrics", self.at(name + ".jsonl"), *options, **more)
        return folder, err

    def losses(self, name):
        rows = [json.loads(line) for line in self.at(name + ".jsonl").read_text().splitlines()]
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    def kernels(self, folder):
        return json.loads(end(start("ckpt", "show", folder, "--json"))[0])["kernels"]

    def same(self, one, other):
        process = start("ckpt", "diff", one, other, "--json")
        out, err = process.communicate(timeout=100)
        self.assertIn(process.returncode, (0, 1), err)
        return process.returncode == 0

    def change(self, folder, **fields):
        path = max(folder.glob("step_*")) / "index.json"
        index = {**json.loads(path.read_text()), **fields}
        path.write_text(json.dumps({name: value for name, value in index.items() if value is not None}))

    def test_a_checkpoint_of_a_lesser_cpu_goes_on_to_the_bit(self):
        for settings in ([], ["dtype=bf16"]):
            with self.subTest(settings=settings):
                bf16 = "-".join(settings)
                whole, _ = self.kept("whole" + bf16, 6, limit=self.less, settings=settings)
                kept, _ = self.kept("kept" + bf16, 3, limit=self.less, settings=settings)
                self.assertEqual(self.kernels(kept), self.less)
                more, err = self.kept("more" + bf16, 6, "--resume", kept, settings=settings)
                self.assertEqual(self.kernels(more), self.less)
                self.assertTrue(self.same(whole, more))
                self.assertEqual({step: loss for step, loss in self.losses("whole" + bf16).items() if step > 3}, self.losses("more" + bf16))
                self.assertIn(f"prun: kernels for {self.less}, with which {max(kept.glob('step_*'))} was computed; with --kernels "
                              f"{self.most} steps are faster, and losses may differ in their last bits\n", err)
                if self.less == "avx2":  # otherwise the test proves nothing
                    self.assertFalse(self.same(whole, self.kept("other" + bf16, 6, settings=settings)[0]))

    def test_a_checkpoint_of_a_greater_cpu_goes_on_and_says_so(self):
        kept, _ = self.kept("kept", 3)
        begin = f"prun: {max(kept.glob('step_*'))} was computed with kernels for {self.most}, "
        rest = f": with those for {self.less} losses may differ in their last bits from here on\n"
        here, err = self.kept("here", 6, "--resume", kept, limit=self.less)
        self.assertIn(f"{begin}which this CPU cannot run{rest}", err)
        self.assertEqual(self.kernels(here), self.less)
        asked, err = self.kept("asked", 6, "--resume", kept, "--kernels", self.less)
        self.assertIn(f"{begin}and --kernels asks for others{rest}", err)
        self.assertTrue(self.same(here, asked), "what is asked for is what a lesser CPU computes")
        same, err = self.kept("same", 6, "--resume", kept)
        self.assertEqual(self.kernels(same), self.most)
        self.assertNotIn("kernels", err)

    def test_what_older_and_newer_programs_have_written(self):
        kept, _ = self.kept("kept", 3)
        step = max(kept.glob("step_*"))
        version = json.loads((step / "index.json").read_text())["arithmetic"]
        rest = f": with those for {self.most} losses may differ in their last bits from here on\n"
        self.change(kept, arithmetic=version + 1)
        _, err = train("zero3", 6, "--resume", kept)
        self.assertIn(f"{step} was computed with kernels for {self.most}, version {version + 1}, where this prun has {version}{rest}", err)
        self.change(kept, arithmetic=version, kernels="avx99")
        _, err = train("zero3", 6, "--resume", kept)
        self.assertIn(f"{step} was computed with kernels for avx99, which this prun does not know{rest}", err)
        self.change(kept, arithmetic=0, kernels="")
        self.assertNotIn("kernels", train("zero3", 6, "--resume", kept)[1])

    def test_what_is_asked_for_and_shown(self):
        kept, _ = self.kept("kept", 1, "--kernels", self.less, "--runs", self.at("runs"))
        self.assertRegex(end(start("ckpt", "show", kept))[0], rf"\nkernels        {self.less}, version \d+, cpu: oneDNN [\d.]+\n")
        runs = [json.loads(path.read_text()) for path in self.at("runs").glob("*/run.json")]
        self.assertEqual([run["kernels"] for run in runs], [self.less])
        index = json.loads((max(kept.glob("step_*")) / "index.json").read_text())
        shown = json.loads(end(start("ckpt", "show", kept, "--json"))[0])
        for key in ("kernels", "arithmetic", "implementation", "algorithms", "mesh", "run"):
            self.assertEqual((runs[0][key], shown[key]), (index[key], index[key]), key)
        for key, value in runs[0]["begin"].items():
            self.assertEqual(shown[key], index[key], key)
            self.assertIn(value, ([], 0, None), key)
        end(start("generate", *plan("zero3", 1), "--checkpoint", kept, "--prompt", "a", "--tokens", 2, "--kernels", self.less))
        _, err = train("ddp", 1, "--kernels", "avx512+pair", code=2)
        self.assertRegex(err, r"prun: --kernels is one of any, avx2, avx512, .*avx512\+tiles, not 'avx512\+pair' \(did you mean 'avx512\+pairs'\?\)")
        _, err = train("ddp", 1, "--kernels", self.most, limit=self.less, code=2)
        self.assertIn(f"prun: --kernels {self.most}: this CPU goes up to {self.less}\n", err)
        _, err = train("ddp", 1, "--kernels", self.less, "--device", "reference", code=2)
        self.assertIn("prun: --kernels are those of CPUs: not with --device reference\n", err)

    def nodes(self, name, steps, *options, limits, codes=(0, 0)):
        place = ["--nnodes", 2, "--rendezvous", f"127.0.0.1:{free_port()}", "--checkpoint", self.at(name), *options]
        nodes = [start(*plan("ddp", steps), *place, "--node-rank", node, limit=limit) for node, limit in enumerate(limits)]
        return [end(node, code)[1] for node, code in zip(nodes, codes)]

    def test_nodes_with_unlike_cpus_compute_the_same(self):
        train("ddp", 4, "--checkpoint", self.at("one"), "--kernels", self.less)
        for name, limits, who in (("weak member", (None, self.less), "the CPU of node 1"), ("weak head", (self.less, None), "this CPU")):
            head, _ = self.nodes(name, 4, "--check-replicas", 1, limits=limits)
            self.assertIn(f"prun: the nodes' CPUs are not alike: all take the kernels for {self.less}, the most that {who} can run, so "
                          "that ranks compute the same bits\n", head)
            self.assertTrue(self.same(self.at("one"), self.at(name)))
        head, _ = self.nodes("more", 6, "--resume", self.at("one"), limits=(None, None))
        self.assertIn(f"prun: kernels for {self.less}, with which ", head)
        train("ddp", 4, "--checkpoint", self.at("most"))
        head, _ = self.nodes("less", 6, "--resume", self.at("most"), limits=(None, self.less))
        self.assertIn(f"was computed with kernels for {self.most}, which the CPU of node 1 cannot run: with those for {self.less} losses", head)

    def test_a_node_that_cannot_run_what_is_asked_for(self):
        head, member = self.nodes("none", 4, "--kernels", self.most, limits=(None, self.less), codes=(2, 2))
        self.assertRegex(head, rf"prun: node 1 \(.+\) cannot run the kernels of this job, for {self.most.replace('+', '.')}: its CPU goes "
                               rf"up to {self.less} \(--kernels {self.less} would suit it\)\n")
        self.assertIn("cannot run the kernels of this job", member)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
