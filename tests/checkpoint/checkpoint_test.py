#!/usr/bin/env python3
"""Checkpoints preserve the training state: any mesh and strategy resumes any other's bitwise, the same mesh continues
as if it had never stopped, and damaged parts are named. Usage: checkpoint_test.py PRUN [--all]
"""
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
import prun_faults_test as faults  # noqa: E402

PRUN = sys.argv[1]
ALL = "--all" in sys.argv[2:]
SIZES = ["layers=4", "width=32", "heads=4", "context=16", "batch=8"]
GPT = [  # plan, ranks, plan arguments
    ("single", 1, []), ("ddp", 2, []), ("ddp", 3, ["batch=9"]), ("zero1", 2, []), ("zero2", 4, []), ("zero3", 2, []), ("zero3", 3, ["batch=9"]),
    ("fsdp", 4, []), ("megatron", 2, []), ("megatron", 4, []), ("1f1b", 2, []), ("1f1b", 4, ["batch=16"]), ("zero_bubble", 2, []), ("interleaved", 2, []),
    ("3d", 8, []), ("3d", 4, ["pp=1"]), ("ring_attention", 2, [])]


def prun(*words, check=True):
    done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=100)
    if check and done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
    return done


def set_words(*settings):
    """Returns --set NAME=VALUE for each name; a later value replaces an earlier one."""
    last = {setting.split("=")[0]: setting for setting in settings}
    return [word for setting in last.values() for word in ("--set", setting)]


def train(plan, ranks, steps, *options, settings=(), check=True):
    sets = set_words(*SIZES, *settings, f"steps={steps}")
    return prun(f"plans/{plan}.lua", "--nproc", ranks, *sets, *options, check=check)


def losses(path):
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def same(one, other):
    return prun("ckpt", "diff", one, other, "--json", check=False)


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-checkpoint-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def at(self, name):
        return self.folder / name


class AnyMesh(Folders):
    def pairs(self, configurations, most):
        pairs = list(itertools.permutations(configurations, 2))
        return pairs if ALL else random.Random(7).sample(pairs, min(most, len(pairs)))

    def kept(self, plan, ranks, settings):
        """Returns a checkpoint after two steps of a configuration, made once."""
        folder = self.at("-".join([plan, str(ranks), *settings]))
        if not folder.exists():
            train(plan, ranks, 2, "--checkpoint", folder, settings=settings)
        return folder

    def check_pairs(self, pairs):
        for number, (one, other) in enumerate(pairs):
            with self.subTest(written=one, read=other):
                copy = self.at(f"copy-{number}")
                written = self.kept(*one)
                train(other[0], other[1], 2, "--resume", written, "--checkpoint", copy, settings=other[2])
                answer = same(written, copy)
                self.assertEqual((answer.returncode, json.loads(answer.stdout)), (0, {"differ": {}}))
                shutil.rmtree(copy)

    def test_every_strategy_reads_every_other_to_the_bit(self):
        self.check_pairs(self.pairs(GPT, 16))

    def test_shards_over_two_axes(self):
        group = "reshard_after_forward=group"
        self.check_pairs(self.pairs([("fsdp", 4, ["replicate=2", group]), ("fsdp", 6, ["replicate=3", group, "batch=12"]), ("3d", 8, [])], 4))

    def test_experts(self):
        self.check_pairs(self.pairs([("moe", n, ["experts=4", f"ep={ep}"]) for n, ep in ((1, 1), (2, 2), (4, 2), (4, 4))], 4))


class AnyState(Folders):
    """A chain of jobs that store the same state in different ways: checkpoints hold logical tensors."""
    CHAINS = [
        ["strategy=pp tied=true", "strategy=none tied=true", "strategy=zero3 tied=true"],
        ["strategy=zero3 dtype=bf16 offload=optimizer", "strategy=ddp dtype=bf16", "strategy=ddp dtype=bf16 offload=optimizer"],
        ["strategy=tp optimizer=adafactor", "strategy=none optimizer=adafactor", "strategy=zero3 optimizer=adafactor",
         "strategy=pp optimizer=adafactor"],
        ["strategy=tp optimizer=sgd model=llama", "strategy=pp optimizer=sgd model=llama", "strategy=zero3 optimizer=sgd model=llama --device cpu-queue",
         "strategy=ddp optimizer=sgd model=llama offload=optimizer --device cpu-queue"]]

    def test_chains(self):
        for chain in self.CHAINS:
            before = None
            for link in chain:
                words, folder = link.split(), self.at(link.replace(" ", "_"))
                device = words[words.index("--device"):] if "--device" in words else []
                sets = [word for setting in words[:len(words) - len(device)] for word in ("--set", setting)]
                prun("tests/checkpoint/kinds.lua", "--nproc", 1 if "strategy=none" in words else 2, *sets, *device, "--checkpoint", folder,
                     *(["--resume", before] if before else []))
                if before:
                    self.assertEqual(json.loads(same(before, folder).stdout), {"differ": {}}, link)
                before = folder

    def test_another_optimizer(self):
        kept = self.at("sgd")
        prun("tests/checkpoint/kinds.lua", "--set", "optimizer=sgd", "--checkpoint", kept)
        for optimizer, missing in (("lion", "lion.m."), ("adafactor", "adafactor.")):
            done = prun("tests/checkpoint/kinds.lua", "--set", f"optimizer={optimizer}", "--resume", kept, check=False)
            self.assertEqual(done.returncode, 16)
            self.assertIn(f"it has no optimizer.{missing}", done.stderr)


class GoesOn(Folders):
    def test_resumed_losses_are_those_of_a_run_that_was_never_stopped(self):
        for plan, ranks in (("zero3", 2), ("megatron", 2), ("1f1b", 2), ("ddp", 2)):
            with self.subTest(plan=plan):
                whole, folder = self.at(f"{plan}.json"), self.at(plan)
                train(plan, ranks, 6, "--metrics", whole, settings=["seed=3"])
                train(plan, ranks, 3, "--checkpoint", folder, settings=["seed=3"])
                rest = self.at(f"{plan}.rest.json")
                train(plan, ranks, 6, "--resume", "auto", "--checkpoint", folder, "--metrics", rest, settings=["seed=3"])
                expected = {step: loss for step, loss in losses(whole).items() if step > 3}
                self.assertEqual(losses(rest), expected)

    def test_steps_is_the_total(self):
        folder = self.at("kept")
        train("ddp", 2, 4, "--checkpoint", folder)
        done = train("ddp", 2, 3, "--resume", folder, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("step_00000004 is the state after 4 steps, and this plan has 3 in all: raise 'steps'", done.stderr)
        done = train("ddp", 2, 4, "--resume", folder)
        self.assertIn("has all 4 steps of this plan: nothing is left to train", done.stderr)

    def test_killed_at_random_it_goes_on_from_what_was_committed(self):
        ran, chance = {}, random.Random(11)
        for kill in range(20):
            plan = ("zero3", "ddp", "1f1b", "megatron")[kill % 4]
            if plan not in ran:
                whole = self.at(f"{plan}.json")
                train(plan, 2, 40, "--metrics", whole)
                ran[plan] = losses(whole)
            expected = ran[plan]
            folder, rest = self.at(f"killed-{kill}"), self.at(f"rest-{kill}.json")
            sets = [word for setting in [*SIZES, "steps=40"] for word in ("--set", setting)]
            run = subprocess.Popen([PRUN, f"plans/{plan}.lua", "--nproc", "2", *sets, "--checkpoint", folder, "--checkpoint-every", "3"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.05, 0.6))
            run.send_signal(signal.SIGKILL)
            run.wait()
            train(plan, 2, 40, "--checkpoint", folder, "--resume", "auto", "--metrics", rest)
            got = losses(rest)
            self.assertEqual(got, {step: expected[step] for step in got})
            self.assertEqual(sorted(path.name for path in folder.glob("*.tmp")), [])
            self.assertEqual(prun("ckpt", "verify", folder).returncode, 0)

    def test_a_rank_killed_while_it_writes_loses_nothing_that_was_committed(self):
        folder = self.at("kept")
        sets = set_words(*SIZES, "width=256", "steps=100000")
        run = subprocess.Popen([PRUN, "plans/zero3.lua", "--nproc", "2", *sets, "--checkpoint", folder, "--checkpoint-every", "2"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not (folder / "LATEST").exists() or not list(folder.glob("*.tmp/*")):
            self.assertIsNone(run.poll())
        children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, said = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 10, said)
        self.assertEqual(prun("ckpt", "verify", folder).returncode, 0)
        step = json.loads(prun("ckpt", "show", folder, "--json").stdout)["step"]
        train("zero3", 2, step + 1, "--checkpoint", folder, "--resume", "auto", settings=["width=256"])
        self.assertEqual(sorted(path.name for path in folder.glob("*.tmp")), [])

    def test_only_the_newest_are_kept(self):
        folder = self.at("keep")
        train("ddp", 2, 7, "--checkpoint", folder, "--checkpoint-every", 2, "--checkpoint-keep", 2)
        rows = [json.loads(line) for line in prun("ckpt", "ls", folder, "--json").stdout.splitlines()]
        self.assertEqual([row["step"] for row in rows], [7, 6])


class Stops(Folders):
    """SIGTERM or Ctrl-C: a checkpoint within the grace time, then exit code 75."""
    WORDS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}

    def start(self, plan, ranks, *options, settings=()):
        sets = set_words("steps=100000", *SIZES, *settings)
        return subprocess.Popen([PRUN, f"plans/{plan}.lua", "--nproc", str(ranks), *sets, *map(str, options)], text=True,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def stop(self, run, *signals):
        faults.wait_for(lambda: faults.ranks_of(run.pid) or run.poll() is not None, "the start of the ranks")
        time.sleep(1)
        for number in signals:
            run.send_signal(number)
            time.sleep(0.6)
        _, said = run.communicate(timeout=60)
        return run.returncode, said

    def test_all_ranks_end_after_the_same_step_and_go_on_from_it(self):
        for plan, ranks, device in (("zero3", 2, "cpu"), ("1f1b", 2, "cpu"), ("3d", 8, "cpu"), ("megatron", 2, "cpu-queue"), ("single", 1, "cpu-queue")):
            with self.subTest(plan=plan, device=device):
                folder, rest, whole = self.at(f"{plan}"), self.at("rest"), self.at("whole")
                code, said = self.stop(self.start(plan, ranks, "--device", device, "--checkpoint", folder), signal.SIGTERM)
                self.assertEqual(code, 75, said)
                index = json.loads(prun("ckpt", "show", folder, "--json").stdout)
                self.assertIn(f"prun: stopped by SIGTERM; {index['checkpoint']} has what was trained, --resume auto goes on", said)
                steps = index["step"] + 3
                train(plan, ranks, steps, "--device", device, "--checkpoint", folder, "--resume", "auto", "--metrics", rest)
                train(plan, ranks, steps, "--device", device, "--metrics", whole)
                got, expected = losses(rest), losses(whole)
                self.assertEqual(got, {step: expected[step] for step in got})
                self.assertEqual(len(got), 3)
                for path in (rest, whole):
                    path.unlink()

    def test_on_two_nodes(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            for asked in (1, 0):
                with self.subTest(signal=number.name, node=asked):
                    folder = self.at(f"{number.name}-{asked}")
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", 0))
                        port = probe.getsockname()[1]
                    nodes = [self.start("zero3", 2, "--nnodes", 2, "--node-rank", node, "--rendezvous", f"127.0.0.1:{port}",
                                        "--checkpoint", folder) for node in (0, 1)]
                    code, said = self.stop(nodes[asked], number)
                    _, other = nodes[1 - asked].communicate(timeout=60)
                    self.assertEqual((code, nodes[1 - asked].returncode), (75, 75), said + other)
                    self.assertIn(f"prun: {self.WORDS[number]} on node {asked} (", said)
                    self.assertIn(f"prun: stopped by {self.WORDS[number]}; ", said if asked == 0 else other)
                    self.assertEqual(prun("ckpt", "verify", folder).returncode, 0)

    def test_without_a_folder_and_the_second_time_it_ends_the_job(self):
        self.assertEqual(self.stop(self.start("zero3", 2), signal.SIGTERM)[0], 143)
        slow = self.start("zero3", 2, "--checkpoint", self.at("slow"), settings=["width=768", "batch=64", "context=128"])
        code, said = self.stop(slow, signal.SIGTERM, signal.SIGTERM)
        self.assertEqual(code, 143, said)

    def test_grace_is_over_before_a_step_is(self):
        for number, ends in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(signal=number.name):
                slow = self.start("zero3", 2, "--checkpoint", self.at(f"slow-{number.name}"), "--grace", 1,
                                  settings=["width=768", "batch=128", "context=256"])
                code, said = self.stop(slow, number)
                self.assertEqual(code, ends, said)
                self.assertIn(f"prun: ended by {self.WORDS[number]}: no checkpoint was whole within --grace 1", said)


class Drift(Folders):
    """Between averages each rank has its own weights and moments; a checkpoint holds all of them."""

    def train(self, ranks, steps, *options, strategy="drift", check=True):
        return prun("tests/checkpoint/kinds.lua", "--nproc", ranks, "--set", f"strategy={strategy}", "--set", f"steps={steps}", *options, check=check)

    def test_the_same_mesh_goes_on_to_the_bit_from_any_step(self):
        kept, whole = self.at("kept"), self.at("whole")
        self.train(2, 8, "--checkpoint", kept, "--checkpoint-every", 1, "--metrics", whole)
        expected = losses(whole)
        for step in (2, 3, 5):
            rest, again = self.at(f"rest-{step}"), self.at(f"again-{step}")
            self.train(2, 8, "--resume", kept / f"step_{step:08}", "--metrics", rest, "--checkpoint", again)
            self.assertEqual(losses(rest), {at: expected[at] for at in range(step + 1, 9)})
            self.assertEqual(json.loads(same(kept, again).stdout), {"differ": {}})
        shape = json.loads(prun("ckpt", "show", kept, "--json").stdout)["tensors"]["block0.proj.weight"]
        self.assertEqual((shape["shape"][0], shape["drift"]), (2, "dp"))

    def test_other_meshes_are_told_why_not(self):
        kept = self.at("kept")
        self.train(2, 2, "--checkpoint", kept)
        done = self.train(4, 4, "--resume", kept, check=False)
        self.assertEqual(done.returncode, 16)
        self.assertIn("there 2 ranks of dp have trained weights of their own (unit:every), and here 4 of dp; init = prun.init.from", done.stderr)
        done = self.train(2, 4, "--resume", kept, strategy="ddp", check=False)
        self.assertEqual(done.returncode, 16)
        self.assertIn("there each of the 2 ranks of dp has trained weights of its own (unit:every), and here all have the same", done.stderr)

    def test_from_weights_that_are_alike(self):
        kept, copy = self.at("kept"), self.at("copy")
        self.train(2, 2, "--checkpoint", kept, strategy="ddp")
        self.train(2, 2, "--resume", kept, "--checkpoint", copy)
        for name, tensor in json.loads(prun("ckpt", "show", copy, "--json").stdout)["tensors"].items():
            self.assertEqual(tensor["shape"][0], 2, name)

    def test_others_read_the_mean(self):
        """After an average all ranks have the exported model's weights; in between, an export is their mean."""
        kept = self.at("kept")
        self.train(2, 4, "--checkpoint", kept, "--checkpoint-every", 1)
        for step in (3, 4):
            prun("ckpt", "import", kept / f"step_{step:08}", "--out", self.at(f"mean-{step}"))
            copies, mean = (self.weights(self.at(at) if at != kept else kept / f"step_{step:08}", "head.logits.weight") for at in (kept, f"mean-{step}"))
            half = len(copies) // 2
            self.assertEqual(copies[:half] == copies[half:], step == 3)
            for a, b, m in zip(*(struct.iter_unpack("<f", part) for part in (copies[:half], copies[half:], mean))):
                self.assertEqual(struct.pack("<f", (a[0] + b[0]) / 2), struct.pack("<f", m[0]))

    @staticmethod
    def weights(folder, name):
        """Returns the bytes of a tensor from all its pieces, which are whole rows."""
        folder = folder if (folder / "index.json").exists() else sorted(folder.glob("step_*"))[-1]
        pieces = json.loads((folder / "index.json").read_text())["tensors"][name]["pieces"]
        data = b""
        for piece in sorted(pieces, key=lambda piece: piece["offset"]):
            file = (folder / piece["file"]).read_bytes()
            header = struct.unpack("<Q", file[:8])[0]
            begin, end = json.loads(file[8:8 + header])[name]["data_offsets"]
            data += file[8 + header + begin:8 + header + end]
        return data


class InThePlan(Folders):
    def test_the_plan_says_when_the_command_where(self):
        plan = "tests/checkpoint/kinds.lua"
        folder = self.at("kept")
        prun(plan, "--nproc", 2, "--set", "strategy=ddp", "--set", "steps=3", "--set", "every=1", "--set", "keep=2", "--checkpoint", folder)
        self.assertEqual([row["step"] for row in map(json.loads, prun("ckpt", "ls", folder, "--json").stdout.splitlines())], [3, 2])
        other = self.at("other")
        prun(plan, "--nproc", 2, "--set", "strategy=ddp", "--set", "steps=3", "--set", "every=1", "--checkpoint", other, "--checkpoint-every", 2, "--checkpoint-keep", 1)
        self.assertEqual([row["step"] for row in map(json.loads, prun("ckpt", "ls", other, "--json").stdout.splitlines())], [3])
        said = prun(plan, "--nproc", 2, "--set", "strategy=ddp", "--set", "steps=3", "--set", "every=1").stderr
        self.assertRegex(said, r"kinds.lua:\d+: the plan makes checkpoints, but has no folder for them; add --checkpoint DIR")


class Damage(Folders):
    def setUp(self):
        super().setUp()
        self.kept = self.at("kept")
        train("zero3", 2, 4, "--checkpoint", self.kept, "--checkpoint-every", 2)

    def damage(self, change):
        path = sorted((self.kept / "step_00000004").glob("*.safetensors"))[0]
        path.write_bytes(change(path.read_bytes()))
        return path

    def refused(self, *words):
        done = train("zero3", 2, 6, *words, check=False)
        self.assertEqual(done.returncode, 16, done.stderr)
        return done.stderr

    def test_a_flipped_bit_is_named_and_auto_takes_the_one_before(self):
        path = self.damage(lambda data: data[:-1] + bytes([data[-1] ^ 1]))
        message = self.refused("--resume", self.kept)
        self.assertIn(f"{path}: the data of ", message)
        done = train("zero3", 2, 6, "--resume", "auto", "--checkpoint", self.kept, "--metrics", self.at("m"))
        self.assertIn("taking the checkpoint before it", done.stderr)
        self.assertEqual(min(losses(self.at("m"))), 3)
        self.assertEqual(prun("ckpt", "verify", self.kept / "step_00000002").returncode, 0)

    def test_a_cut_file(self):
        path = self.damage(lambda data: data[:-100])
        self.assertRegex(self.refused("--resume", self.kept), f"{path}: tensor .* the file is cut")
        self.assertEqual(prun("ckpt", "verify", self.kept, check=False).returncode, 1)

    def test_a_header_that_lies(self):
        path = self.damage(lambda data: struct.pack("<Q", 1 << 40) + data[8:])
        self.assertIn(f"{path}: a header of 1099511627776 bytes in a file of", self.refused("--resume", self.kept))

    def test_a_file_that_is_missing(self):
        path = sorted((self.kept / "step_00000004").glob("*.safetensors"))[0]
        path.unlink()
        self.assertIn(f"{path}: No such file or directory", self.refused("--resume", self.kept))

    def test_an_index_of_a_newer_format(self):
        path = self.kept / "step_00000004" / "index.json"
        index = json.loads(path.read_text())
        path.write_text(json.dumps({**index, "version": 99}))
        self.assertIn("format 99 was written by a newer prun", self.refused("--resume", self.kept))

    def test_another_model(self):
        done = train("zero3", 2, 6, "--resume", self.kept, settings=["width=64"], check=False)
        self.assertEqual(done.returncode, 16)
        self.assertRegex(done.stderr, r"does not fit this plan: .* is F32\[.*32.*\] there and F32\[.*64.*\] here")
        done = train("zero3", 2, 6, "--resume", self.kept, settings=["heads=2"], check=False)
        self.assertEqual(done.returncode, 16)
        self.assertIn("does not fit this plan: heads is 4 there and 2 here", done.stderr)
        done = train("zero3", 2, 6, "--resume", self.kept, settings=["seed=5"], check=False)
        self.assertIn("was trained with seed 0, this plan has 5", done.stderr)

    def test_other_data_are_refused_and_another_curve_is_said(self):
        data = self.at("text")
        text = pathlib.Path(__file__).read_bytes()
        data.write_bytes(text)
        kept = self.at("own")
        train("ddp", 2, 2, "--checkpoint", kept, settings=[f"data={data}"])
        data.write_bytes(text + b"more")
        done = train("ddp", 2, 3, "--resume", kept, settings=[f"data={data}"], check=False)
        self.assertEqual(done.returncode, 16)
        self.assertIn(f"{data} has grown from {len(text)} tokens to {len(text) + 4} (the first {len(text)} are as before); use those, or "
                      "add --new-data to go on with the first sample of these", done.stderr)
        data.write_bytes(text[:-7])
        done = train("ddp", 2, 3, "--resume", kept, settings=[f"data={data}"], check=False)
        self.assertEqual(done.returncode, 16)
        self.assertIn(f"{data} has shrunk from {len(text)} tokens to {len(text) - 7}; use those, or add --new-data", done.stderr)
        kinds = self.at("kinds")
        prun("tests/checkpoint/kinds.lua", "--nproc", 2, "--set", "strategy=ddp", "--set", "steps=3", "--set", "cosine=true", "--checkpoint", kinds)
        said = prun("tests/checkpoint/kinds.lua", "--nproc", 2, "--set", "strategy=ddp", "--set", "cosine=true", "--set", "steps=5", "--resume", kinds).stderr
        self.assertRegex(said, r"from step 4 on the learning rate follows another curve: cosine, .* over 5 steps.*; before: cosine, .* over 3 steps")

    def test_more_files_than_a_shell_lets_one_open(self):
        many = self.at("many")
        prun("ckpt", "reshard", self.kept, "--ranks", 60, "--out", many)
        done = subprocess.run(["bash", "-c", 'ulimit -Sn 40; exec "$0" ckpt verify "$1"', PRUN, many], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_other_kernels_are_said(self):
        path = self.kept / "step_00000004" / "index.json"
        index = json.loads(path.read_text())
        self.assertIn("cpu: oneDNN", index["implementation"])
        path.write_text(json.dumps({**index, "implementation": "others"}))
        self.assertIn("computed by other kernels (others; here cpu: oneDNN", train("zero3", 2, 6, "--resume", self.kept).stderr)

    def test_a_disk_without_room_for_one_is_refused_before_launch(self):
        small = self.at("small")
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", small])
        done = train("zero3", 2, 4, "--checkpoint", small, check=False)
        self.assertEqual((done.returncode, done.stdout), (15, ""), done.stderr)
        self.assertRegex(done.stderr, r"prun: .*small: a checkpoint of this job takes [\d.]+ [KM]iB, and [\d.]+ KiB are free there: ")

    def test_two_runs_do_not_write_to_one_folder(self):
        sets = [word for setting in [*SIZES, "steps=100000"] for word in ("--set", setting)]
        other = subprocess.Popen([PRUN, "plans/zero3.lua", "--nproc", "2", *sets, "--checkpoint", self.kept, "--resume", "auto"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        other.stdout.readline()
        done = train("zero3", 2, 6, "--checkpoint", self.kept, "--overwrite", check=False)
        other.kill()
        other.wait()
        other.stdout.close()
        self.assertEqual(done.returncode, 2)
        self.assertIn("another run writes its checkpoints to", done.stderr)
        self.assertEqual(sorted(path.name for path in self.kept.glob("step_*4")), ["step_00000004"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
