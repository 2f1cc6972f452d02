#!/usr/bin/env python3
"""Exports to and imports from Hugging Face's transformers: logits and the losses of a training loop are the same. Only
packages are downloaded; models have random weights.

Usage: transformers_test.py PRUN VENV [--all] [TEST ..]. VENV is created with torch, transformers and safetensors from PyPI if it
is missing; PRUN_HF_PYTHON names a Python that has them. --all: also a GPT-2 of 124M parameters.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import packages  # noqa: E402

PRUN, VENV, ALL = sys.argv[1], sys.argv[2], "--all" in sys.argv[3:]
packages.run_inside(__file__, VENV)
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    SeedOssConfig,
    SmolLM3Config,
    Starcoder2Config,
)

torch.set_num_threads(2)
transformers.utils.logging.disable_progress_bar()
CONTEXT, VOCAB = 32, 200
PLAN = """local prun = require "prun"
local arg = prun.args {{ steps = 1, dp = "rest", tp = 1, lr = 1e-3 }}
return prun.plan {{
  mesh = prun.mesh {{ dp = arg.dp, tp = arg.tp }},
  model = {model}, {init}
  data = prun.data.bytes {{ path = "window", batch = {batch} }},
  strategy = {{ prun.tensor_parallel {{ axis = "tp" }}, prun.zero3 {{ axis = "dp" }} }},
  optimizer = prun.adamw {{ lr = arg.lr, betas = {{ 0.9, 0.99 }}, weight_decay = 0.1 }},
  steps = arg.steps,
}}
"""
LABELS = """local prun = require "prun"
local arg = prun.args {{ dp = 1, tp = 1, pp = 1, micro = 1 }}
local theirs = {model}
return prun.plan {{
  mesh = prun.mesh {{ pp = arg.pp, dp = arg.dp, tp = arg.tp }},
  model = function(batch) return theirs.build {{ tokens = batch.x, targets = batch.y }} end,
  init = prun.init.from {{ path = "theirs" }},
  data = prun.data.arrays {{ x = "x.npy", y = "y.npy", batch = 8 }},
  strategy = {{ prun.pipeline {{ axis = "pp" }}, prun.tensor_parallel {{ axis = "tp" }}, prun.zero3 {{ axis = "dp" }} }},
  optimizer = prun.sgd {{ lr = 0.3 }},
  micro = arg.micro, steps = 4,
}}
"""
GPT = "prun.models.gpt { vocab = 256, layers = 2, width = 64, heads = 4, context = 32%s }"
LLAMA = "prun.models.llama { vocab = 256, layers = 2, width = 64, heads = 4, context = 32%s }"
OURS = {
    "gpt": GPT % "", "gpt_tied": GPT % ", tied = true", "gpt_exact": GPT % ', gelu = "none", hidden = 96, positions = 48, eps = 1e-6',
    "llama": LLAMA % "", "llama_shared": LLAMA % ", kv_heads = 2, tied = true, base = 5e5, eps = 1e-6",
    "llama_biased": LLAMA % ", kv_heads = 2, head_size = 32, hidden = 80, attention_bias = true, mlp_bias = true",
    "llama_3.1": LLAMA % ', kv_heads = 2, rope_type = "llama3", rope_factor = 8, high_freq_factor = 3, original_context = 16',
    "llama_linear": LLAMA % ', rope_type = "linear", rope_factor = 4',
    "mixtral": LLAMA.replace("llama", "mixtral") % ", kv_heads = 2, experts = 3"}
SMALL = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **SMALL}
LLAMA2 = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": CONTEXT, **SMALL}
THEIRS = {
    "gpt2": GPT2Config(**GPT2), "gpt2_untied": GPT2Config(**GPT2, tie_word_embeddings=False, activation_function="gelu"),
    "llama": LlamaConfig(**LLAMA2), "llama_tied": LlamaConfig(**LLAMA2, tie_word_embeddings=True, rope_theta=5e5, rms_norm_eps=1e-5),
    "llama_biased": LlamaConfig(**LLAMA2, head_dim=32, attention_bias=True, mlp_bias=True),
    "llama_3.1": LlamaConfig(**LLAMA2, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                                                        "high_freq_factor": 3.0, "original_max_position_embeddings": 16}),
    "llama_linear": LlamaConfig(**LLAMA2, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "mixtral": MixtralConfig(**LLAMA2, num_local_experts=3), "mixtral_tied": MixtralConfig(**LLAMA2, num_local_experts=4, tie_word_embeddings=True)}
OPT = {"hidden_size": 64, "ffn_dim": 112, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "dropout": 0.0,
       "word_embed_proj_dim": 64, "pad_token_id": None, **SMALL}
# Architectures of prun's descriptions that are like another one, and their names for --description.
LIKE = {
    "mistral": MistralConfig(**LLAMA2, sliding_window=None, head_dim=32),
    "qwen2": Qwen2Config(**LLAMA2),
    "phi3": Phi3Config(**LLAMA2, pad_token_id=None),
    "smollm3": SmolLM3Config(**{**LLAMA2, "num_hidden_layers": 5}, no_rope_layer_interval=2, pad_token_id=None),
    "seed_oss": SeedOssConfig(**LLAMA2, head_dim=16, attention_dropout=0.0, residual_dropout=0.0),
    "opt": OPTConfig(**OPT), "opt_untied": OPTConfig(**OPT, tie_word_embeddings=False, activation_function="gelu"),
    "starcoder2": Starcoder2Config(**LLAMA2, residual_dropout=0.0, embedding_dropout=0.0)}
VARIANTS = {
    "mistral_window": MistralConfig(**LLAMA2, sliding_window=CONTEXT), "qwen2_tied": Qwen2Config(**LLAMA2, tie_word_embeddings=True),
    "phi3_full_heads": Phi3Config(**{**LLAMA2, "num_key_value_heads": 4}, pad_token_id=None, tie_word_embeddings=True),
    "smollm3_biased": SmolLM3Config(**{**LLAMA2, "num_hidden_layers": 4}, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, pad_token_id=None),
    "starcoder2_plain": Starcoder2Config(**LLAMA2, residual_dropout=0.0, embedding_dropout=0.0, use_bias=False, tie_word_embeddings=False, hidden_act="gelu")}
THEIRS |= LIKE | VARIANTS


def prun(*words, cwd, check=True):
    done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=900, cwd=cwd)
    if check and done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
    return done


def named(name):
    """Returns the name for --description of a configuration."""
    return "seed_oss" if name == "seed_oss" else name.partition("_")[0]


def tokens_of(folder, context):
    return torch.tensor(list((folder / "window").read_bytes()[:context + 1]))[None]


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), tokens[:, 1:].reshape(-1))


def balance_of(model, tokens):
    """Returns a mixture's weighted balancing loss, 0 of other models."""
    if not hasattr(model.config, "router_aux_loss_coef"):
        return 0
    done = model(tokens[:, :-1], output_router_logits=True, labels=tokens[:, :-1])
    return model.config.router_aux_loss_coef * done.aux_loss.double()


def logits_of(folder, tokens):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    if any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise AssertionError(info)
    with torch.no_grad():
        return model(tokens[:, :-1]).logits


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-hf-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.window(CONTEXT)

    def window(self, context):
        """Writes a file of one sample, so that every batch is that sample."""
        generator = torch.Generator().manual_seed(5)
        (self.folder / "window").write_bytes(bytes(torch.randint(0, VOCAB, (context + 1,), generator=generator).tolist()))

    def train(self, model, steps, *options, init="", ranks=1, batch=4):
        (self.folder / "plan.lua").write_text(PLAN.format(model=model, init=init, batch=batch))  # batch: also the fields after it
        metrics = self.folder / "metrics"
        metrics.unlink(missing_ok=True)
        prun("plan.lua", "--nproc", ranks, "--set", f"steps={steps}", "--metrics", "metrics", *options, cwd=self.folder)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [row["loss"] for row in rows if "loss" in row]

    def near(self, found, wanted, relative):
        self.assertEqual(len(found), len(wanted))
        for one, other in zip(found, wanted):
            self.assertLess(abs(one - other), relative * abs(other), f"{found}\n{wanted}")


class Export(Folders):
    def test_what_prun_trained_computes_the_same_in_transformers(self):
        for name, model in OURS.items():
            for ranks, sets in ((1, []), (4, ["--set", "tp=2"])):
                with self.subTest(name=name, ranks=ranks):
                    shutil.rmtree(self.folder / "runs", ignore_errors=True)
                    shutil.rmtree(self.folder / "hf", ignore_errors=True)
                    losses = self.train(model, 4, "--checkpoint", "runs", "--checkpoint-every", 3, *sets, ranks=ranks)
                    prun("ckpt", "export", "runs/step_00000003", "--format", "hf", "--out", "hf", cwd=self.folder)
                    theirs = AutoModelForCausalLM.from_pretrained(self.folder / "hf")
                    tokens = tokens_of(self.folder, CONTEXT)
                    with torch.no_grad():
                        self.near([losses[3]], [float(loss_of(theirs, tokens) + balance_of(theirs, tokens))], 1e-5)

    def test_every_token_has_the_probability_that_transformers_gives_it(self):
        """Samples with prun generate from the checkpoint, at a temperature so high that every token is chosen
        somewhere.
        """
        for name, model in OURS.items():
            with self.subTest(name=name):
                shutil.rmtree(self.folder / "runs", ignore_errors=True)
                shutil.rmtree(self.folder / "hf", ignore_errors=True)
                self.train(model, 6, "--checkpoint", "runs", "--set", "lr=0.02", ranks=2)
                prun("ckpt", "export", "runs", "--format", "hf", "--out", "hf", cwd=self.folder)
                theirs = AutoModelForCausalLM.from_pretrained(self.folder / "hf", dtype=torch.float32)
                seen, spread = set(), 0.0
                for seed in range(8):
                    ours = json.loads(prun("generate", "runs", "--prompt", "abcdefgh"[seed:], "--temperature", 1000, "--top-k", 0,
                                           "--seed", seed, "--json", cwd=self.folder).stdout)
                    tokens, prompt = ours["prompt"] + ours["ids"], len(ours["prompt"])
                    self.assertEqual(len(tokens), CONTEXT + 1)
                    with torch.no_grad():
                        wanted = torch.log_softmax(theirs(torch.tensor([tokens[:-1]])).logits[0].double(), -1)[prompt - 1:]
                    self.near(ours["log_probabilities"], wanted.gather(1, torch.tensor(ours["ids"])[:, None])[:, 0].tolist(), 1e-5)
                    seen.update(ours["ids"])
                    spread = max(spread, wanted.std(-1).max().item())
                self.assertGreater(len(seen), 120)
                self.assertGreater(spread, 0.5)  # the weights differ clearly

    def test_other_types_are_those_of_f32_rounded(self):
        self.train(OURS["llama_shared"], 3, "--checkpoint", "runs")
        for dtype in ("f32", "bf16", "f16"):
            prun("ckpt", "export", "runs", "--format", "hf", "--dtype", dtype, "--out", dtype, cwd=self.folder)
        whole = AutoModelForCausalLM.from_pretrained(self.folder / "f32", dtype="auto").state_dict()
        for dtype, theirs in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            model = AutoModelForCausalLM.from_pretrained(self.folder / dtype, dtype="auto")
            self.assertEqual(model.dtype, theirs)
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(tensor, whole[name].to(theirs)), name)

    def test_the_tokenizer_goes_along(self):
        """An export includes the tokenizer stored with the token files; transformers encodes and generates with it."""
        forms = pathlib.Path(__file__).resolve().parents[1] / "generate/tokenizers"
        (self.folder / "tokens.bin").write_bytes(b"".join(token.to_bytes(2, "little") for token in range(420)) * 2)
        shutil.copy(forms / "gpt2.json", self.folder / "tokenizer.json")
        (self.folder / "plan.lua").write_text(PLAN.format(model=OURS["llama"].replace("256", "420"), init="", batch=4).replace(
            'bytes { path = "window"', 'tokens { path = "tokens.bin"'))
        prun("plan.lua", "--checkpoint", "runs", cwd=self.folder)
        said = prun("ckpt", "export", "runs", "--format", "hf", "--out", "hf", cwd=self.folder).stdout
        self.assertIn(", with the tokenizer " + str(self.folder / "tokenizer.json"), said)
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "hf")
        ids = tokenizer("the time of the sea", return_tensors="pt").input_ids
        ours = json.loads(prun("generate", "runs", "--prompt", "the time of the sea", "--tokens", 8, "--temperature", 0, "--json",
                               cwd=self.folder).stdout)
        self.assertEqual((ids[0].tolist(), tokenizer.eos_token), (ours["prompt"], "<|endoftext|>"))
        model = AutoModelForCausalLM.from_pretrained(self.folder / "hf")
        self.assertEqual(model.generation_config.eos_token_id, [0])
        made = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1]:].tolist()
        self.assertEqual(made, ours["ids"][:len(made)])
        prun("ckpt", "export", "runs", "--format", "hf", "--out", "none", "--tokenizer", "none", cwd=self.folder)
        self.assertFalse((self.folder / "none/tokenizer.json").exists())
        prun("ckpt", "export", "runs", "--format", "hf", "--out", "other", "--tokenizer", forms / "llama2.json", cwd=self.folder)
        self.assertEqual(AutoTokenizer.from_pretrained(self.folder / "other")("the").input_ids[0], 1)  # <s>

    def test_shards(self):
        self.train(OURS["llama"].replace("width = 64", "width = 128"), 1, "--checkpoint", "runs")
        for out, most in (("whole", 5000), ("shards", 1)):
            prun("ckpt", "export", "runs", "--format", "hf", "--out", out, "--file-mib", most, cwd=self.folder)
        self.assertGreater(len(list((self.folder / "shards").glob("model-*-of-*.safetensors"))), 1)
        tokens = tokens_of(self.folder, CONTEXT)
        self.assertTrue(torch.equal(logits_of(self.folder / "whole", tokens), logits_of(self.folder / "shards", tokens)))


class Import(Folders):
    def make(self, config, name="theirs", dtype=torch.float32, **saving):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():  # also biases and norms
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.to(dtype).save_pretrained(self.folder / name, **saving)
        return model.float()

    def test_there_and_back(self):
        tokens = tokens_of(self.folder, CONTEXT)
        for name, config in THEIRS.items():
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                with self.subTest(name=name, dtype=dtype):
                    for folder in ("theirs", "runs", "back"):
                        shutil.rmtree(self.folder / folder, ignore_errors=True)
                    self.make(config, dtype=dtype, max_shard_size="100KB")
                    self.assertTrue((self.folder / "theirs/model.safetensors.index.json").exists())
                    prun("ckpt", "import", "theirs", "--out", "runs", cwd=self.folder)
                    prun("ckpt", "export", "runs", "--format", "hf", "--description", named(name), "--out", "back", cwd=self.folder)
                    self.assertTrue(torch.equal(logits_of(self.folder / "theirs", tokens), logits_of(self.folder / "back", tokens)))

    def fine_tune(self, config, ranks=1, sets=(), steps=10, batch=4, context=CONTEXT, bound=1e-4):
        self.window(context)
        theirs = self.make(config)
        shown = prun("ckpt", "show", "theirs", cwd=self.folder).stdout.splitlines()[1]
        shown = shown.replace("choices =", "aux = 0, choices =")  # transformers adds the aux loss only on request
        found = self.train(shown, steps, *sets, init='init = prun.init.from { path = "theirs" },', ranks=ranks, batch=batch)
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
        tokens, wanted = tokens_of(self.folder, context), []
        for _ in range(steps):
            loss = loss_of(theirs, tokens)
            wanted.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{config.model_type}: {found[0]:.6f} .. {found[-1]:.6f}, PyTorch {wanted[0]:.6f} .. {wanted[-1]:.6f}")
        self.near(found, wanted, bound)
        self.assertLess(wanted[-1], wanted[0])

    def test_fine_tuning_equals_the_loop_of_pytorch(self):
        for name, config in THEIRS.items():
            for ranks, sets in ((1, []), (4, ["--set", "tp=2"])):
                with self.subTest(name=name, ranks=ranks):
                    shutil.rmtree(self.folder / "theirs", ignore_errors=True)
                    self.fine_tune(config, ranks, sets)

    def test_each_architecture_through_a_run(self):
        """Their weights, two steps in prun, and the result in transformers under the same architecture."""
        tokens = tokens_of(self.folder, CONTEXT)
        for name, config in (LIKE | VARIANTS).items():
            with self.subTest(name=name):
                for folder in ("theirs", "runs", "back", "state"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                theirs = self.make(config)
                shown = prun("ckpt", "show", "theirs", cwd=self.folder).stdout.splitlines()[1]
                losses = self.train(shown, 3, "--checkpoint", "runs", "--checkpoint-every", 2, init='init = prun.init.from { path = "theirs" },')
                with torch.no_grad():
                    self.near(losses[:1], [loss_of(theirs, tokens).item()], 1e-6)
                architecture = named(name)
                words = ["ckpt", "export", "runs/step_00000002", "--description", architecture]
                prun(*words, "--format", "hf", "--out", "back", cwd=self.folder)
                trained = AutoModelForCausalLM.from_pretrained(self.folder / "back", dtype=torch.float32)
                self.assertIs(type(trained), type(theirs))
                with torch.no_grad():
                    self.near(losses[2:], [loss_of(trained, tokens).item()], 1e-6)
                self.assertGreater(abs(losses[2] - losses[0]), 1e-3)
                prun(*words, "--format", "torch", "--out", "state", cwd=self.folder)
                theirs.load_state_dict(load_file(self.folder / "state/model.safetensors"))  # strict
                with torch.no_grad():
                    self.assertTrue(torch.equal(theirs(tokens[:, :-1]).logits, logits_of(self.folder / "back", tokens)))

    @unittest.skipUnless(ALL, "with --all")
    def test_gpt2_of_124_million_parameters(self):
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.fine_tune(config, batch=1, context=1024)

    def test_greedy_text_is_that_of_transformers(self):
        """Generates from a folder without a plan, on one rank and on two: same tokens, log-probabilities equal to 1e-4.
        """
        for name, config in THEIRS.items():
            model = self.make(config, name)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(3)  # makes one token clearly the most likely
            model.eval().save_pretrained(self.folder / name)
            for ranks in (1, 2):
                with self.subTest(name=name, ranks=ranks):
                    ours = json.loads(prun("generate", name, "--nproc", ranks, "--prompt", "the sea", "--tokens", 25, "--temperature", 0,
                                           "--json", cwd=self.folder).stdout)
                    ids = torch.tensor([ours["prompt"]])
                    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=25, do_sample=False, output_logits=True,
                                          return_dict_in_generate=True, pad_token_id=0)
                    tokens = made.sequences[0, ids.shape[1]:].tolist()
                    self.assertEqual(ours["ids"], tokens)
                    for logits, token, found in zip(made.logits, tokens, ours["log_probabilities"], strict=True):
                        self.assertAlmostEqual(found, torch.log_softmax(logits[0].double(), -1)[token].item(), delta=1e-4)

    def test_the_loss_leaves_out_what_follows_a_document(self):
        theirs = self.make(THEIRS["llama"])
        shown = prun("ckpt", "show", "theirs", cwd=self.folder).stdout.splitlines()[1]
        tokens = tokens_of(self.folder, CONTEXT)
        ends = sorted({tokens[0, i].item() for i in (3, 10, 20)})
        for end in ends:
            found = self.train(shown, 1, init='init = prun.init.from { path = "theirs" },', batch=f"4, document_end = {end}")
            targets = tokens[:, 1:].masked_fill(tokens[:, :-1] == end, -1).reshape(-1)
            with torch.no_grad():
                logits = theirs(tokens[:, :-1]).logits[0].double()
            wanted = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1)
            self.near(found, [wanted.item()], 1e-5)

    def test_labels_that_do_not_count(self):
        """Labels of -100 in arrays against transformers' loss with num_items_in_batch, its batch accumulated in two parts."""
        draw = torch.Generator().manual_seed(3)
        ids = torch.randint(0, VOCAB, (8, CONTEXT), generator=draw)
        labels = ids.clone()
        for sample in labels:
            sample[:torch.randint(1, CONTEXT - 1, (1,), generator=draw)] = -100
        numpy.save(self.folder / "x.npy", ids.int().numpy())
        numpy.save(self.folder / "y.npy", torch.cat([labels[:, 1:], torch.full((8, 1), -100)], 1).numpy())
        count = (labels[:, 1:] != -100).sum()
        for name in ("gpt2", "llama"):
            shutil.rmtree(self.folder / "theirs", ignore_errors=True)
            theirs, wanted = self.make(THEIRS[name]), []
            shown = prun("ckpt", "show", "theirs", cwd=self.folder).stdout.splitlines()[1]
            (self.folder / "plan.lua").write_text(LABELS.format(model=shown))
            optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3)
            for _ in range(4):
                optimizer.zero_grad()
                parts = [theirs(input_ids=ids[part], labels=labels[part], num_items_in_batch=count).loss
                         for part in (slice(0, 3), slice(3, 8))]
                sum(parts).backward()
                optimizer.step()
                wanted.append(sum(parts).item())
            for ranks, sets in ((1, []), (2, ["dp=2", "micro=2"]), (4, ["pp=2", "tp=2", "micro=4"])):
                with self.subTest(name=name, sets=sets):
                    words = [word for one in sets for word in ("--set", one)]
                    done = prun("plan.lua", "--nproc", ranks, "--metrics", "-", "-q", *words, cwd=self.folder)
                    self.near([json.loads(line)["loss"] for line in done.stdout.splitlines()], wanted, 1e-6)

    def test_weights_of_a_checkpoint_begin_a_run_anew(self):
        self.train(OURS["llama"], 3, "--checkpoint", "runs", "--checkpoint-every", 2)
        whole = self.train(OURS["llama"], 3)
        found = self.train(OURS["llama"], 1, init='init = prun.init.from { path = "runs/step_00000002" },', ranks=2)
        self.near(found, whole[2:], 1e-6)


class DistributedCheckpoints(Folders):
    """torch.distributed.checkpoint reads prun's files, and writes files that prun reads."""
    def test_both_ways(self):
        self.train(OURS["llama"], 2, "--checkpoint", "runs", ranks=4)
        folder = self.folder / "runs/step_00000002"
        saved = json.loads((folder / "index.json").read_text())["tensors"]
        self.assertTrue(any(len(tensor["pieces"]) > 1 for tensor in saved.values()))
        state = {name: torch.full(tensor["shape"], float("nan")) for name, tensor in saved.items()}
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
        for name, tensor in saved.items():
            for piece in tensor["pieces"]:
                with safe_open(folder / piece["file"], "pt") as file:
                    place = tuple(slice(at, at + n) for at, n in zip(piece["offset"], piece["shape"]))
                    self.assertTrue(torch.equal(state[name][place], file.get_tensor(name)), name)
            self.assertFalse(state[name].isnan().any(), name)
        dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(self.folder / "theirs"), save_distributed=True))
        prun("ckpt", "import", "theirs", "--out", "back", cwd=self.folder)
        differ = json.loads(prun("ckpt", "diff", "runs", "back", "--json", cwd=self.folder, check=False).stdout)["differ"]
        self.assertTrue(all(name.startswith("optimizer.") for name in differ), differ)
        whole = self.train(OURS["llama"], 3)
        self.near(self.train(OURS["llama"], 1, init='init = prun.init.from { path = "theirs" },'), whole[2:], 1e-6)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *(word for word in sys.argv[3:] if not word.startswith("-"))])
