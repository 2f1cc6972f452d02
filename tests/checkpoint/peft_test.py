#!/usr/bin/env python3
"""LoRA against peft: 10 training steps, peft's folders opened by peft, and merged folders opened by transformers.

Usage: peft_test.py PRUN VENV. VENV is created with torch, transformers and peft if it is missing; PRUN_HF_PYTHON names a Python that
has them.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[k]) for k in (0, 1)]
import lora_example  # noqa: E402
import packages  # noqa: E402

PRUN, VENV = sys.argv[1], sys.argv[2]
packages.run_inside(__file__, VENV, (*packages.PACKAGES, "peft"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
import torch  # noqa: E402
import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig  # noqa: E402

torch.set_num_threads(2)
transformers.utils.logging.disable_progress_bar()
CONTEXT, BATCH, STEPS, RATE = 16, 4, 10, 0.02
PLAN = """local prun = require "prun"
local arg = prun.args { steps = 1, lr = 0.02, dp = 1, tp = 1, dtype = "f64", train = "", path = "theirs" }
return prun.plan {
  mesh = prun.mesh { dp = arg.dp, tp = arg.tp },
  model = MODEL,
  data = prun.data.bytes { path = "window", batch = 4, order = "epochs" },
  init = prun.init.from { path = arg.path },
  strategy = { prun.tensor_parallel { axis = "tp" }, prun.zero3 { axis = "dp" } },
  lora = prun.lora { match = "LAYERS", rank = 4, alpha = 12, train = arg.train ~= "" and arg.train or nil },
  optimizer = prun.adamw { lr = arg.lr, betas = { 0.9, 0.99 }, weight_decay = 0.1 },
  steps = arg.steps, dtype = arg.dtype,
}
"""
OURS = {
    "gpt": ('prun.models.gpt { vocab = 256, layers = 2, width = 64, heads = 4, context = 16, tied = true }', "*.qkv|*.proj|*.up|*.down",
            GPT2Config(vocab_size=256, n_layer=2, n_embd=64, n_head=4, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
    "llama": ("prun.models.llama { vocab = 256, layers = 2, width = 64, heads = 4, kv_heads = 2, hidden = 96, context = 16, eps = 1e-6 }",
              "*.qkv|block1.down",
              LlamaConfig(vocab_size=256, num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                          intermediate_size=96, max_position_embeddings=16, rms_norm_eps=1e-6, attn_implementation="eager")),
}


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(256, 24), torch.nn.LayerNorm(24)
        self.up, self.down, self.head = torch.nn.Linear(24, 32), torch.nn.Linear(32, 24), torch.nn.Linear(24, 256, bias=False)

    def forward(self, tokens, targets):
        x = self.table(tokens)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return torch.nn.functional.cross_entropy(self.head(x).view(-1, 256), targets.view(-1))


class Peft(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-peft-"))
        self.addCleanup(shutil.rmtree, self.folder)
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(0, 256, (BATCH * CONTEXT + 1,), generator=generator)
        (self.folder / "window").write_bytes(bytes(tokens.tolist()))
        rows = [tokens[i * CONTEXT:(i + 1) * CONTEXT + 1] for i in range(BATCH)]
        self.tokens, self.targets = torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])

    def at(self, name):
        return self.folder / name

    def prun(self, *words, **settings):
        for name, value in settings.items():
            words += ("--set", f"{name}={value}")
        done = subprocess.run([PRUN, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout}{done.stderr}")
        return done.stdout

    def train(self, runs, *words, **settings):
        out = self.prun("plan.lua", "--device", "reference", "--metrics", "-", "-q", "--checkpoint", runs, *words, **settings)
        return [json.loads(line)["loss"] for line in out.splitlines()]

    def begin(self, family):
        """Writes their folder and the plan, and returns the model with the first adapters: A as prun has it, B = 0."""
        ours, layers, config = OURS[family]
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(config).save_pretrained(self.at("theirs"))
        self.at("plan.lua").write_text(PLAN.replace("MODEL", ours).replace("LAYERS", layers))
        self.train("first", lr=1e-300)
        self.prun("ckpt", "export", "first", "--format", "peft", "--out", "peft0")
        return self.open("peft0", trainable=True)

    def open(self, adapters, trainable=False):
        model = AutoModelForCausalLM.from_pretrained(self.at("theirs"), dtype=torch.float64)
        return PeftModel.from_pretrained(model, self.at(adapters), is_trainable=trainable).double()

    def loss(self, model):
        logits = model(self.tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.view(-1, 256), self.targets.reshape(-1))

    def check_exports(self, runs):
        """Compares peft's folder, merged by peft, with the merged folder."""
        self.prun("ckpt", "export", runs, "--format", "peft", "--out", "peft")
        self.prun("ckpt", "export", runs, "--merge", "--out", "merged")
        merged = AutoModelForCausalLM.from_pretrained(self.at("merged"), dtype=torch.float64)
        alone, both = self.open("peft").eval(), self.open("peft").merge_and_unload().eval()
        base = AutoModelForCausalLM.from_pretrained(self.at("theirs"), dtype=torch.float64)
        with torch.no_grad():
            logits = [model(self.tokens).logits for model in (alone, both, merged.eval(), base.eval())]
        for other in logits[1:3]:
            self.assertLess((logits[0] - other).abs().max(), 2e-5)
        self.assertGreater((logits[0] - logits[3]).abs().max(), 1e-2)

    def steps(self, model):
        """Trains peft's adapters; returns the losses."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.assertEqual(len(trained), 2 * 4 * 2)
        optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.99), weight_decay=0.1)
        losses = []
        for _ in range(STEPS):
            loss = self.loss(model)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses

    def save_adapters(self, name, **options):
        """Writes random adapters, both parts, with peft."""
        torch.manual_seed(7)
        base = AutoModelForCausalLM.from_pretrained(self.at("theirs"))
        config = LoraConfig(r=4, lora_alpha=12, init_lora_weights=False, task_type="CAUSAL_LM", **options)
        get_peft_model(base, config).save_pretrained(self.at(name))

    def check_round_trip(self, adapters):
        """Training that changes nothing exports the adapters that it began with."""
        self.train("again", path=adapters, lr=1e-300)
        self.prun("ckpt", "export", "again", "--format", "peft", "--out", "returned")
        before, after = (load_file(self.at(name) / "adapter_model.safetensors") for name in (adapters, "returned"))
        self.assertEqual(set(before), set(after))
        for name, value in before.items():
            self.assertTrue(torch.equal(value.double(), after[name].double()), name)

    def test_training_begins_with_adapters_of_peft(self):
        self.begin("gpt")
        self.save_adapters("start", target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
        theirs = self.steps(self.open("start", trainable=True))
        for ranks, settings in ((1, {}), (4, {"dp": 2, "tp": 2})):
            ours = self.train(f"runs{ranks}", "--nproc", ranks, steps=STEPS, path="start", **settings)
            for mine, other in zip(ours, theirs, strict=True):
                self.assertLess(abs(mine - other), 1e-9)
        self.assertLess(theirs[-1], theirs[0] - 0.1)
        self.check_round_trip("start")

    def test_adapters_of_parts_of_a_layer_need_one_a(self):
        self.begin("llama")
        self.train("runs", steps=STEPS)
        self.prun("ckpt", "export", "runs", "--format", "peft", "--out", "ours")
        self.check_round_trip("ours")
        self.save_adapters("start", target_modules=["q_proj", "v_proj"])
        done = subprocess.run([PRUN, "plan.lua", "--set", "path=start"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 16)
        self.assertIn("model.layers.0.self_attn.q_proj and model.layers.0.self_attn.v_proj are parts of block0.qkv here", done.stderr)

    def test_ten_steps_of_gpt2_are_those_of_peft(self):
        model = self.begin("gpt")
        theirs = self.steps(model)
        for ranks, settings in ((1, {}), (4, {"dp": 2, "tp": 2})):
            runs = f"runs{ranks}"
            ours = self.train(runs, "--nproc", ranks, steps=STEPS, **settings)
            for mine, other in zip(ours, theirs, strict=True):
                self.assertLess(abs(mine - other), 1e-9)
            self.prun("ckpt", "export", runs, "--format", "peft", "--out", f"peft{ranks}")
            found = load_file(self.at(f"peft{ranks}") / "adapter_model.safetensors")
            wanted = {name.replace(".default", ""): value for name, value in model.state_dict().items() if "lora_" in name}
            self.assertEqual(set(found), set(wanted))
            for name, value in wanted.items():
                self.assertLess((found[name].double() - value).abs().max(), 1e-8, name)
        self.assertLess(theirs[-1], theirs[0] - 0.1)
        self.check_exports("runs4")

    def test_modules_that_are_trained_in_full_open_in_peft(self):
        self.begin("gpt")
        self.train("runs", steps=3, train="head.ln.*|block1.ln2.*")
        self.check_exports("runs")
        config = json.loads((self.at("peft") / "adapter_config.json").read_text())
        self.assertEqual(config["modules_to_save"], ["transformer.h.1.ln_2", "transformer.ln_f"])

    def test_parts_of_a_fused_layer_open_in_peft(self):
        model = self.begin("llama")
        self.assertLess(abs(self.train("again", steps=1)[0] - self.loss(model).item()), 1e-9)
        self.train("runs", steps=STEPS)
        self.check_exports("runs")
        config = json.loads((self.at("peft") / "adapter_config.json").read_text())
        self.assertFalse(config["fan_in_fan_out"])
        self.assertEqual(len([name for name in config["target_modules"] if name.startswith("model.layers.")]), 7)

    def test_a_plan_of_export_trains_adapters(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/python"))
        os.environ["PRUN_COMMAND"] = os.path.abspath(PRUN)
        import prun
        torch.manual_seed(4)
        module = Tiny()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        prun.export(module, (self.tokens, self.targets)).save(self.at("tiny"))
        (self.folder / "train.bin").write_bytes(bytes(byte for i in range(200) for byte in (i, 0)))
        plan = self.at("tiny.lua")
        plan.write_text(plan.read_text().replace("return prun.plan {", 'return prun.plan {\n  lora = prun.lora { match = "*up|*down", alpha = 16 },', 1))
        self.prun("tiny.lua", "--checkpoint", "runs", steps=3)
        after = prun.load(self.at("runs"), framework="torch", description=self.at("tiny.weights"))
        self.assertEqual(len(prun.load(self.at("runs"), framework="torch")), len(before))
        self.assertEqual([name for name in before if not torch.equal(before[name], after[name])], ["up.weight", "down.weight"])
        module.load_state_dict(after)

    def test_the_example_of_the_guide(self):
        torch.manual_seed(2)
        base = AutoModelForCausalLM.from_config(OURS["gpt"][2])
        base.save_pretrained(self.at("gpt2"))
        x, y = lora_example.write(self.folder, 256, 2, 64, 4, 16, -100)
        for words in lora_example.commands():
            self.prun(*words)
        tuned = AutoModelForCausalLM.from_pretrained(self.at("tuned"))
        both = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(self.at("gpt2")), self.at("adapters"))
        with torch.no_grad():
            logits = [model.eval()(torch.tensor(x)).logits for model in (base, tuned, both)]
        losses = [torch.nn.functional.cross_entropy(each.view(-1, 256), torch.tensor(y).view(-1)).item() for each in logits]
        self.assertLess(losses[1], losses[0])
        self.assertLess((logits[1] - logits[2]).abs().max(), 2e-5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
