#!/usr/bin/env python3
"""LoRA of a GPT-2 folder that this test writes: training, checkpoints of the adapters alone, their base, exports.
peft_test.py compares with PyTorch and peft. Usage: lora_test.py PRUN
"""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import hf_files_test as files
import lora_example

run, size = files.run, files.size
LAYERS, WIDTH, HEADS, CONTEXT, VOCAB, RANK, ALPHA = 2, 16, 2, 8, 256, 3, 6
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS,
          "n_positions": CONTEXT}
LAYER = {"ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,), "attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,),
         "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
         "mlp.c_fc.weight": (WIDTH, 4 * WIDTH), "mlp.c_fc.bias": (4 * WIDTH,), "mlp.c_proj.weight": (4 * WIDTH, WIDTH), "mlp.c_proj.bias": (WIDTH,)}
SHAPES = {"transformer.wte.weight": (VOCAB, WIDTH), "transformer.wpe.weight": (CONTEXT, WIDTH), "transformer.ln_f.weight": (WIDTH,),
          "transformer.ln_f.bias": (WIDTH,)}
SHAPES.update({f"transformer.h.{i}.{name}": shape for i in range(LAYERS) for name, shape in LAYER.items()})
PLAN = """local prun = require "prun"
local arg = prun.args { path = "theirs", steps = 4, lr = 0.01, layers = 2, context = 8, strategy = "single", dtype = "f32",
  lora = "*.qkv|*.proj", train = "", alpha = 6, dropout = 0.0, rank = 3, missing = "error", tp = 0 }
local mesh, strategy = {}, {}
if arg.strategy ~= "single" then mesh.dp, strategy[1] = prun.rest, prun[arg.strategy] { axis = "dp" } end
if arg.tp > 0 then mesh.tp, strategy[#strategy + 1] = arg.tp, prun.tensor_parallel { axis = "tp" } end
return prun.plan {
  mesh = prun.mesh(mesh),
  model = prun.models.gpt { vocab = 256, layers = arg.layers, width = 16, heads = 2, context = arg.context, tied = true },
  data = prun.data.bytes { path = "text/sample.txt", batch = 4 },
  init = arg.path ~= "" and prun.init.from { path = arg.path, missing = arg.missing } or nil,
  eval = prun.eval { every = 1, batches = 2 },
  strategy = strategy,
  optimizer = prun.adamw { lr = arg.lr },
  lora = arg.lora ~= "" and prun.lora { match = arg.lora, rank = arg.rank, alpha = arg.alpha, dropout = arg.dropout,
                                        train = arg.train ~= "" and arg.train or nil } or nil,
  steps = arg.steps, dtype = arg.dtype,
}
"""


def product(a, b, rows, inner, columns):
    return [sum(a[i * inner + k] * b[k * columns + j] for k in range(inner)) for i in range(rows) for j in range(columns)]


def turned(values, rows, columns):
    return files.turned(values, rows, columns)


class Lora(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-lora-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.base()
        (self.folder / "plan.lua").write_text(PLAN)

    def at(self, *names):
        return self.folder.joinpath(*names)

    def base(self, name="theirs", other=False):
        """Writes a GPT-2 folder, or one that differs from it in one number."""
        folder = self.at(name)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        tensors = {}
        for tensor, shape in SHAPES.items():
            values = [value / 400 + (1 if "ln_" in tensor and tensor.endswith("weight") else 0) for value in files.numbers(tensor, shape)]
            tensors[tensor] = ["F32", shape, values]
        if other:
            tensors["transformer.h.1.mlp.c_fc.weight"][2][7] += 0.5
        files.write_safetensors(folder / "model.safetensors", tensors)

    def prun(self, *words, code=0, **settings):
        for name, value in settings.items():
            words += ("--set", f"{name}={value}")
        return run(*words, cwd=self.folder, code=code)

    def train(self, *words, code=0, ranks=1, **settings):
        out = self.prun("plan.lua", "--nproc", ranks, "--metrics", "-", "-q", *words, code=code, **settings)
        return [json.loads(line) for line in out.splitlines()] if code == 0 else out

    def losses(self, *words, **settings):
        return [step["loss"] for step in self.train(*words, **settings) if "loss" in step]


class Checkpoints(Lora):
    def test_they_hold_the_adapters_alone_and_continue(self):
        whole = self.losses("--checkpoint", "whole")
        self.assertLess(whole[-1], whole[0])
        first = self.losses("--checkpoint", "half", steps=2)
        index = json.loads(self.at("half/step_00000002/index.json").read_text())
        parts = [f"block{i}.{layer}.lora_{part}.weight" for i in range(LAYERS) for layer in ("qkv", "proj") for part in "ab"]
        self.assertEqual(sorted(index["tensors"]), sorted(parts + [f"optimizer.adamw.{m}.{name}" for m in "mv" for name in parts]))
        self.assertEqual(index["lora"]["base"], str(self.at("theirs").resolve()))
        self.assertEqual(len(index["lora"]["base_sha256"]), 64)
        self.assertEqual(first + self.losses("--checkpoint", "half", "--resume", "auto"), whole)
        rest = self.losses("--checkpoint", "there", "--resume", "half/step_00000002", ranks=2, strategy="zero3")
        for mine, theirs in zip(rest, whole[2:], strict=True):
            self.assertLess(abs(mine - theirs), 1e-5)

    def test_another_base_is_refused_and_a_moved_one_is_told(self):
        self.losses("--checkpoint", "runs", steps=2)
        self.base("other", other=True)
        self.at("theirs").rename(self.at("moved"))
        resume = ("--checkpoint", "runs", "--resume", "auto")
        self.assertIn("is gone; --base DIR says where it is", self.train(*resume, code=3))
        said = self.train(*resume, "--base", "other", code=16)
        for word in ("other base", str(self.at("theirs")), str(self.at("other"))):
            self.assertIn(word, said)
        self.assertEqual(len(self.losses(*resume, "--base", "moved", steps=3)), 1)
        self.at("moved").rename(self.at("theirs"))
        first = ("--checkpoint", "there", "--resume", "runs/step_00000002")
        self.assertEqual(len(self.losses(*first, path="gone")), 2)  # its base is where it was

    def test_other_adapters_and_whole_models_are_refused(self):
        self.losses("--checkpoint", "runs", steps=1)
        resume = ("--checkpoint", "there", "--resume", "runs")
        self.assertIn("alpha of its adapters is 6 there and 8 here", self.train(*resume, code=16, alpha=8))
        self.assertIn("is F32[16, 3] there and F32[16, 2] here", self.train(*resume, code=16, rank=2))
        self.assertIn("it holds adapters (rank 3, alpha 6), and the plan has no lora", self.train(*resume, code=16, lora=""))
        self.assertIn("and the plan has no init = prun.init.from", self.train(*resume, code=16, path=""))
        self.losses("--checkpoint", "full", steps=1, lora="")
        self.assertIn("it holds a whole model", self.train("--checkpoint", "there", "--resume", "full", code=16))

    def test_parameters_trained_in_full_are_kept_and_frozen_ones_may_not_be_missing(self):
        self.losses("--checkpoint", "runs", steps=1, train="head*")
        tensors = json.loads(self.at("runs/step_00000001/index.json").read_text())["tensors"]
        self.assertIn("head.ln.weight", tensors)
        self.assertNotIn("block0.ln1.weight", tensors)
        self.assertIn("lacks 'block2.", self.train(code=3, layers=3, missing="initialise"))

    def test_a_restart_continues(self):
        whole = self.losses(steps=4)
        out = self.train("--checkpoint", "runs", "--checkpoint-every", 2, "--max-restarts", 1, "--chaos", "kill:rank=1,step=3",
                         ranks=2, strategy="ddp", steps=4)
        losses = [step["loss"] for step in out if "loss" in step]
        for mine, theirs in zip(losses[-1:], whole[-1:], strict=True):
            self.assertLess(abs(mine - theirs), 1e-5)


class Exports(Lora):
    def trained(self, **settings):
        steps = self.train("--checkpoint", "runs", steps=2, **settings)
        return [step["eval_loss"] for step in steps if "eval_loss" in step]

    def parts(self, name="runs/step_00000002"):
        return files.checkpoint_tensors(self.at(*name.split("/")))

    def test_merged_weights_are_the_sum_and_give_the_same_loss(self):
        losses = self.trained()
        self.prun("ckpt", "export", "runs", "--merge", "--out", "merged")
        ours, theirs, merged = (self.parts(), *(files.read_safetensors(self.at(name, "model.safetensors"))[0] for name in ("theirs", "merged")))
        self.assertEqual(sorted(merged), sorted(theirs))
        for name, (shape, values) in theirs.items():
            layer = {"attn.c_attn.weight": "qkv", "attn.c_proj.weight": "proj"}.get(name.split(".", 3)[-1])
            wanted = values
            if layer:
                at = f"block{name.split('.')[2]}.{layer}.lora_"
                low = product(ours[at + "a.weight"][1], ours[at + "b.weight"][1], shape[0], RANK, shape[1])
                self.assertGreater(max(map(abs, low)), 1e-4)
                wanted = [value + ALPHA / RANK * more for value, more in zip(values, low, strict=True)]
            self.assertLess(max(abs(a - b) for a, b in zip(merged[name][1], wanted, strict=True)), 1e-7)
        steps = self.train(path="merged", lora="", lr=1e-30, steps=1)
        again = [step["eval_loss"] for step in steps if "eval_loss" in step]
        self.assertLess(abs(again[0] - losses[1]), 2e-6)

    def test_peft_has_the_parts_under_their_names(self):
        self.trained()
        self.prun("ckpt", "export", "runs", "--format", "peft", "--out", "peft")
        config = json.loads(self.at("peft/adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"], config["fan_in_fan_out"], config["base_model_name_or_path"]),
                         (RANK, ALPHA, True, str(self.at("theirs").resolve())))
        self.assertEqual(config["target_modules"], ["attn.c_attn", "attn.c_proj"])
        ours, theirs = self.parts(), files.read_safetensors(self.at("peft/adapter_model.safetensors"))[0]
        self.assertEqual(len(theirs), 4 * LAYERS)
        for part in "ab":
            shape, values = ours[f"block1.qkv.lora_{part}.weight"]
            name = f"base_model.model.transformer.h.1.attn.c_attn.lora_{part.upper()}.weight"
            self.assertEqual(theirs[name], (shape[::-1], turned(values, *shape)))

    def test_what_cannot_be_exported_is_said(self):
        self.trained(train="*.ln1.bias")
        export = ("ckpt", "export", "runs", "--out", "out")
        self.assertIn("--merge exports the sum of both", self.prun(*export, code=2))
        self.assertIn("only a part of transformer.h.0.ln_1 is trained in full", self.prun(*export, "--format", "peft", code=16))
        self.base("other", other=True)
        self.assertIn("adapters of another base", self.prun(*export, "--merge", "--base", "other", code=16))
        self.at("theirs").rename(self.at("moved"))
        self.assertIn("there is no such folder; --base DIR", self.prun(*export, "--merge", code=16))
        self.prun(*export, "--merge", "--base", "moved")

    def test_a_checkpoint_without_a_base_holds_all_weights(self):
        self.losses("--checkpoint", "runs", steps=2, path="")
        self.assertEqual(len(self.losses("--checkpoint", "runs", "--resume", "auto", path="")), 2)
        ours = self.parts()
        self.assertIn("embed.token.weight", ours)
        self.prun("ckpt", "export", "runs/step_00000002", "--merge", "--out", "merged")
        merged = files.read_safetensors(self.at("merged", "model.safetensors"))[0]
        self.assertEqual(merged["transformer.wte.weight"], ours["embed.token.weight"])
        self.assertNotEqual(merged["transformer.h.0.attn.c_proj.weight"], ours["block0.proj.weight"])

    def test_generation_reads_adapters(self):
        self.trained(lr=0.1)
        self.prun("ckpt", "export", "runs", "--merge", "--out", "merged")
        words = ("--prompt", "ab", "--tokens", 6, "--temperature", 0, "--json")
        each = [json.loads(self.prun("generate", *given, *words)) for given in
                (("plan.lua", "--checkpoint", "runs"), ("runs",), ("merged",), ("theirs",))]
        self.assertEqual(each[0]["ids"], each[2]["ids"])
        self.assertEqual(each[1]["ids"], each[2]["ids"])
        self.assertLess(abs(each[0]["log_probabilities"][0] - each[2]["log_probabilities"][0]), 1e-5)
        self.assertGreater(abs(each[3]["log_probabilities"][0] - each[2]["log_probabilities"][0]), 1e-2)


    def test_evaluations_and_predictions_read_adapters(self):
        for path in ("theirs", ""):
            last = self.trained(lr=0.1, path=path)[-1]
            for ranks, strategy in ((1, "single"), (2, "ddp"), (2, "zero3")):
                with self.subTest(path=path, strategy=strategy):
                    words = ("plan.lua", "--from", "runs", "--nproc", ranks)
                    found = json.loads(self.prun("eval", *words, "--json", path=path, strategy=strategy))
                    self.assertLess(abs(found["eval_loss"] - last), 1e-5)
                    self.prun("predict", *words, "--out", "rows.npy", path=path, strategy=strategy)
            shutil.rmtree(self.at("runs"))


class FromPeft(Lora):
    """Runs that begin with exported adapters."""

    def export(self, runs, out, **settings):
        """Trains two steps and exports the adapters; returns the last evaluation's loss."""
        last = [step["eval_loss"] for step in self.train("--checkpoint", runs, steps=2, **settings) if "eval_loss" in step][-1]
        self.prun("ckpt", "export", runs, "--format", "peft", "--out", out)
        return last

    def evaluated(self, *words, **settings):
        """Returns the loss of the evaluation after a step that changes nothing."""
        return [step["eval_loss"] for step in self.train(*words, steps=1, lr=1e-300, **settings) if "eval_loss" in step][-1]

    def test_a_run_begins_with_them(self):
        for train in ("", "head.ln.*"):
            last = self.export(f"runs{train[:4]}", f"peft{train[:4]}", train=train)
            peft, again = f"peft{train[:4]}", f"again{train[:4]}"
            self.assertEqual(self.evaluated("--checkpoint", again, path=peft, train=train), last)
            self.assertLess(abs(self.evaluated(path=peft, train=train, ranks=2, strategy="zero3") - last), 1e-5)
            self.assertLess(abs(self.evaluated(path=peft, lora="") - last), 2e-6)  # merged
            self.prun("ckpt", "export", again, "--format", "peft", "--out", f"back{train[:4]}")
            for name in ("adapter_model.safetensors", "adapter_config.json"):
                self.assertEqual(self.at(peft, name).read_bytes(), self.at(f"back{train[:4]}", name).read_bytes())
            shutil.rmtree(self.at(peft))  # a resume needs the base only
            self.assertEqual(len(self.losses("--checkpoint", again, "--resume", "auto", path=peft, train=train, steps=3)), 2)

    def test_adapters_that_do_not_fit_name_both_sides(self):
        self.export("runs", "peft")
        for words, settings in (("rank is 3 there and 4 here", {"rank": 4}), ("alpha is 6 there and 8 here", {"alpha": 8}),
                                ("they adapt 'block0.proj', which match (*.qkv) here does not", {"lora": "*.qkv"}),
                                ("match (*.qkv|*.proj|*.up) here adapts 'block0.up', which has no adapter there",
                                 {"lora": "*.qkv|*.proj|*.up"})):
            self.assertIn(words, self.train(path="peft", code=16, **settings))
        self.export("full", "saved", train="head.ln.*")
        self.assertIn("they hold 'head.ln.weight', trained in full, which lora here freezes: add train = ", self.train(path="saved", code=16))
        self.at("theirs").rename(self.at("moved"))
        self.assertIn("there is no such folder; --base DIR says where the base is", self.train(path="peft", code=3))
        self.evaluated("--base", "moved", path="peft")
        self.at("moved").rename(self.at("theirs"))

    def change(self, change):
        path = self.at("peft/adapter_config.json")
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, **change}))
        said = self.train(path="peft", code=16)
        path.write_text(json.dumps(config))
        return said

    def test_what_prun_lacks_is_refused(self):
        self.export("runs", "peft")
        self.assertIn("use_dora is true, which prun.lora lacks; merge them with peft", self.change({"use_dora": True}))
        self.assertIn('rank_pattern is {"c_attn":2}, which prun.lora lacks', self.change({"rank_pattern": {"c_attn": 2}}))
        self.assertIn('peft_type is "IA3", and prun has LORA only', self.change({"peft_type": "IA3"}))
        self.assertIn("r is 0 and lora_alpha 6", self.change({"r": 0}))
        self.assertIn("transformer.h.0.attn.c_attn.lora_A is [3, 16], and by adapter_config.json and the base it should be [2, 16]",
                      self.change({"r": 2}))
        tensors = files.read_safetensors(self.at("peft/adapter_model.safetensors"))[0]
        name = "base_model.model.transformer.h.1.attn.c_proj.lora_"
        for gone, words in ((f"{name}B.weight", "transformer.h.1.attn.c_proj has no lora_B"),
                            (None, "its tensor base_model.model.other.weight belongs to no layer of ")):
            kept = {key: ["F32", *value] for key, value in tensors.items() if key != gone}
            files.write_safetensors(self.at("peft/adapter_model.safetensors"),
                                    kept if gone else {**kept, "base_model.model.other.weight": ["F32", (1,), [0.0]]})
            self.assertIn(words, self.train(path="peft", code=16))
        self.at("peft/adapter_model.safetensors").unlink()
        self.assertIn("there is no adapter_model.safetensors", self.train(path="peft", code=16))


class Guide(Lora):
    def test_the_example_trains_and_exports(self):
        self.at("theirs").rename(self.at("gpt2"))
        lora_example.write(self.folder, VOCAB, LAYERS, WIDTH, HEADS, CONTEXT, -100)
        words = lora_example.commands()
        self.assertEqual([each[0] for each in words], ["sft.lua", "ckpt", "ckpt"])
        for each in words:
            self.prun(*each)
        theirs, tuned = (files.read_safetensors(self.at(name, "model.safetensors"))[0] for name in ("gpt2", "tuned"))
        changed = sorted(name for name in theirs if theirs[name] != tuned[name])
        self.assertEqual(changed, [f"transformer.h.{i}.attn.{layer}.weight" for i in range(LAYERS) for layer in ("c_attn", "c_proj")])
        self.assertEqual(len(files.read_safetensors(self.at("adapters/adapter_model.safetensors"))[0]), 4 * LAYERS)


class Memory(Lora):
    def test_state_and_gradients_are_those_of_the_adapters(self):
        count = LAYERS * (RANK * (WIDTH + 3 * WIDTH) + RANK * 2 * WIDTH)
        for dtype, wide in (("f32", 4), ("bf16", 2)):
            found = json.loads(self.prun("check", "plan.lua", "--json", "--checkpoint-every", 2, dtype=dtype))
            roles = found["classes"][0]["roles"]
            padded = 4 * LAYERS * 2 * 32
            self.assertLessEqual(count, padded + count)
            for role, times in (("grad", 1), ("optimizer", 2)):
                self.assertGreaterEqual(roles[role], 4 * times * count)
                self.assertLessEqual(roles[role], 4 * times * (count + padded))
            self.assertGreaterEqual(roles["frozen"], wide * sum(map(size, SHAPES.values())))
            self.assertLessEqual(found["classes"][0]["host_roles"]["snapshot"], 12 * (count + padded))
        said = self.prun("check", "plan.lua")
        self.assertIn("lora (rank 3, alpha 6): 576 parameters in 4 layers: block*.qkv, block*.proj\n", said)

    def test_traffic_is_that_of_the_adapters(self):
        found = json.loads(self.prun("check", "plan.lua", "--json", "--nproc", 2, strategy="ddp"))["classes"][0]
        self.assertLess(found["wire_bytes_per_step"]["dp"], 3 * found["roles"]["grad"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
