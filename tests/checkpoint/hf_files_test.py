#!/usr/bin/env python3
"""Hugging Face folders, resharded checkpoints and sharded safetensors, written and read by this test without packages.
transformers_test.py does the same with transformers and PyTorch. Usage: hf_files_test.py PRUN
"""
import array
import json
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
WIDTH, HEADS, SHARED, HIDDEN, VOCAB = 8, 4, 2, 12, 256
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": HIDDEN,
          "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": SHARED, "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
SHAPES = {"model.embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
for _name, _shape in {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,), "self_attn.q_proj": (WIDTH, WIDTH),
                      "self_attn.k_proj": (4, WIDTH), "self_attn.v_proj": (4, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
                      "mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH), "mlp.down_proj": (WIDTH, HIDDEN)}.items():
    SHAPES[f"model.layers.0.{_name}.weight"] = _shape
PLAN = """local prun = require "prun"
local arg = prun.args {{ path = "theirs", heads = 4, eps = 1e-6, width = 8, steps = 1, vocab = 256 }}
return prun.plan {{
  mesh = prun.mesh {{ dp = prun.world }},
  model = prun.models.{model},
  data = prun.data.bytes {{ path = "text/sample.txt", batch = 4 }},
  init = prun.init.from {{ path = arg.path }},
  strategy = {{ prun.zero3 {{ axis = "dp" }} }},
  optimizer = prun.adamw {{ lr = 1e-3 }},
  steps = arg.steps,
}}
"""
LLAMA = "llama { vocab = arg.vocab, layers = 1, width = arg.width, heads = arg.heads, kv_heads = 2, hidden = 12, context = 16, eps = arg.eps }"


def run(*words, cwd, code=0):
    done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=100, cwd=cwd)
    if done.returncode != code:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr.strip()


def size(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def numbers(name, shape):
    """Returns small integers derived from the name, which every dtype represents."""
    first = sum(name.encode()) % 50
    return [float((first + 7 * i) % 101 - 50) for i in range(size(shape))]


def encode(values, dtype):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{ {'F32': 'f', 'F16': 'e', 'F64': 'd'}[dtype] }", *values)


def write_safetensors(path, tensors, metadata=None):
    """Writes a file; tensors: name -> (dtype, shape, values)."""
    header, data = {"__metadata__": metadata or {"format": "pt"}}, b""
    for name, (dtype, shape, values) in tensors.items():
        bytes_of = encode(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(bytes_of)]}
        data += bytes_of
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    whole = path.read_bytes()
    length, = struct.unpack_from("<Q", whole)
    header, found = json.loads(whole[8:8 + length]), {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = (entry["shape"], list(array.array("f", whole[8 + length + begin:8 + length + end])))
    return found, header["__metadata__"]


def checkpoint_tensors(folder):
    """Returns name -> (shape, values) of a checkpoint whose pieces are rows."""
    index, found = json.loads((folder / "index.json").read_text()), {}
    for name, tensor in index["tensors"].items():
        values = []
        for piece in sorted(tensor["pieces"], key=lambda p: p["offset"]):
            values += read_safetensors(folder / piece["file"])[0][name][1]
        found[name] = (tensor["shape"], values)
    return found


def turned(values, rows, columns):
    return [values[r * columns + c] for c in range(columns) for r in range(rows)]


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-hf-files-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def at(self, name):
        return self.folder / name

    def theirs(self, name="theirs", dtypes=("F32",), shards=1, config=None, shapes=None, left_out=()):
        """Writes a folder as transformers does."""
        folder = self.at(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
        files, where = [{} for _ in range(shards)], {}
        for i, (tensor, shape) in enumerate({**SHAPES, **(shapes or {})}.items()):
            if tensor in left_out:
                continue
            files[i % shards][tensor] = (dtypes[i % len(dtypes)], shape, numbers(tensor, shape))
            where[tensor] = f"model-{i % shards + 1:05}-of-{shards:05}.safetensors"
        if shards == 1:
            write_safetensors(folder / "model.safetensors", files[0])
            return folder
        for k, tensors in enumerate(files):
            write_safetensors(folder / f"model-{k + 1:05}-of-{shards:05}.safetensors", tensors)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        return folder

    def plan(self, model=LLAMA):
        self.at("plan.lua").write_text(PLAN.format(model=model))


class Conversions(Folders):
    def test_every_type_and_shards_become_one_checkpoint(self):
        for dtypes, shards in ((("F32",), 1), (("BF16", "F16", "F64"), 3)):
            self.theirs(dtypes=dtypes, shards=shards)
            shutil.rmtree(self.at("runs"), ignore_errors=True)
            run("ckpt", "import", "theirs", "--out", "runs", cwd=self.folder)
            run("ckpt", "verify", "runs", cwd=self.folder)
            ours = checkpoint_tensors(self.at("runs/step_00000000"))
            of = {name: numbers(name, shape) for name, shape in SHAPES.items()}
            block = "model.layers.0."
            self.assertEqual(ours["embed.token.weight"], ([VOCAB, WIDTH], of["model.embed_tokens.weight"]))
            self.assertEqual(ours["head.logits.weight"], ([WIDTH, VOCAB], turned(of["lm_head.weight"], VOCAB, WIDTH)))
            self.assertEqual(ours["block0.down.weight"], ([HIDDEN, WIDTH], turned(of[block + "mlp.down_proj.weight"], WIDTH, HIDDEN)))
            # q, k and v concatenated along rows, then transposed.
            rows = sum((of[f"{block}self_attn.{one}_proj.weight"] for one in "qkv"), [])
            self.assertEqual(ours["block0.qkv.weight"], ([WIDTH, 16], turned(rows, 16, WIDTH)))

    def test_there_and_back(self):
        self.theirs()
        run("ckpt", "import", "theirs", "--out", "runs", cwd=self.folder)
        run("ckpt", "export", "runs", "--format", "hf", "--out", "back", cwd=self.folder)
        before, after = (read_safetensors(self.at(name) / "model.safetensors") for name in ("theirs", "back"))
        self.assertEqual(before[0], after[0])
        self.assertEqual(after[1], {"format": "pt"})
        config = json.loads(self.at("back/config.json").read_text())
        self.assertEqual({**config, **CONFIG}, config)

    def test_every_mesh_begins_with_the_same(self):
        self.theirs(config={"num_hidden_layers": 1})
        losses = set()
        for ranks, axes, strategy, micro in ((1, "dp = 1", "", 1), (2, "pp = 2", 'prun.pipeline { axis = "pp", schedule = "1f1b" }', 2),
                                             (2, "cp = 2", 'prun.context_parallel { axis = "cp" }', 1),
                                             (4, "dp = 2, tp = 2", 'prun.tensor_parallel { axis = "tp" }, prun.fsdp { axis = "dp" }', 1)):
            text = PLAN.format(model=LLAMA).replace("dp = prun.world", axes).replace('prun.zero3 { axis = "dp" }', strategy)
            self.at("plan.lua").write_text(text.replace("steps = arg.steps", f'steps = arg.steps, micro = {micro}'))
            self.at("metrics").unlink(missing_ok=True)
            run("plan.lua", "--nproc", ranks, "--metrics", "metrics", cwd=self.folder)
            losses.add(f"{json.loads(self.at('metrics').read_text().splitlines()[0])['loss']:.5g}")
        self.assertEqual(len(losses), 1, losses)

    def test_reshard_keeps_every_bit(self):
        self.theirs()
        self.plan()
        run("plan.lua", "--nproc", 2, "--checkpoint", "runs", cwd=self.folder)
        for ranks in (1, 3):
            run("ckpt", "reshard", "runs", "--ranks", ranks, "--out", f"to{ranks}", cwd=self.folder)
            self.assertEqual(len(list(self.at(f"to{ranks}/step_00000001").glob("rank_*"))), ranks)
            run("ckpt", "verify", f"to{ranks}", cwd=self.folder)
            run("ckpt", "diff", "runs", f"to{ranks}", cwd=self.folder)
        run("plan.lua", "--nproc", 2, "--set", "steps=2", "--resume", "to3", cwd=self.folder)

    def test_json(self):
        self.theirs()
        for words in (("import", "theirs", "--out", "runs"), ("export", "runs", "--format", "hf", "--out", "back"),
                      ("reshard", "runs", "--ranks", 2, "--out", "two")):
            line = json.loads(run("ckpt", *words, "--json", cwd=self.folder))
            self.assertEqual((line["out"], line["tensors"], line["model"]["name"]), (words[-1], 10, "llama"))
        self.assertEqual(json.loads(run("ckpt", "show", "theirs", "--json", cwd=self.folder))["model"]["arguments"]["kv_heads"], 2)

    def test_memory_does_not_grow_with_the_model(self):
        rows, columns = 128 * 1024, 2048  # 1 GiB, mostly a hole
        header = {"embed.token.weight": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, rows * columns * 4]},
                  "__metadata__": {"DCP_SHARDING_INFO": json.dumps({"embed.token.weight": {"saved_offsets": [0, 0]}})}}
        self.at("large").mkdir()
        text = json.dumps(header).encode()
        with open(self.at("large/one.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + rows * columns * 4)
        run("ckpt", "import", "large", "--out", "runs", cwd=self.folder)
        run("ckpt", "reshard", "runs", "--ranks", 3, "--out", "three", cwd=self.folder)
        run("ckpt", "verify", "three", cwd=self.folder)
        run("ckpt", "diff", "runs", "three", cwd=self.folder)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 256 * 1024)

    def test_sharded_safetensors_are_joined(self):
        self.at("shards").mkdir()
        values = numbers("w", (6, 4))
        for k, (first, last) in enumerate(((0, 2), (2, 6))):
            places = json.dumps({"w": {"saved_offsets": [first, 0]}})
            write_safetensors(self.at(f"shards/{k}.safetensors"), {"w": ("F32", (last - first, 4), values[4 * first:4 * last])},
                              {"DCP_SHARDING_INFO": places})
        run("ckpt", "import", "shards", "--out", "runs", cwd=self.folder)
        self.assertEqual(checkpoint_tensors(self.at("runs/step_00000000")), {"w": ([6, 4], values)})
        self.at("shards/0.safetensors").unlink()
        self.assertIn("the pieces of w hold 16 of its 24 elements", run("ckpt", "import", "shards", "--out", "more", cwd=self.folder, code=16))
        # A file without offsets holds whole tensors; PyTorch stores those of linear layers transposed, which needs a plan.
        write_safetensors(self.at("shards/1.safetensors"), {"w": ("F32", (24,), values)})
        run("ckpt", "import", "shards", "--out", "vectors", cwd=self.folder)
        self.assertEqual(checkpoint_tensors(self.at("vectors/step_00000000")), {"w": ([24], values)})
        write_safetensors(self.at("shards/1.safetensors"), {"w": ("F32", (6, 4), values)})
        self.assertIn("shards does not record whether w belongs to a linear layer",
                      run("ckpt", "import", "shards", "--out", "more", cwd=self.folder, code=16))
        write_safetensors(self.at("shards/2.safetensors"), {"w": ("F32", (6, 4), values)})
        self.assertIn("w is in another file, too", run("ckpt", "import", "shards", "--out", "more", cwd=self.folder, code=16))

    def test_layout_of_pytorch(self):
        """An export for PyTorch and back, with a square weight, whose shape is the same in both layouts."""
        self.theirs()
        self.plan()
        run("plan.lua", "--nproc", 2, "--checkpoint", "runs", cwd=self.folder)
        run("ckpt", "import", "runs", "--out", "again", cwd=self.folder)
        ours = checkpoint_tensors(self.at("runs/step_00000001"))
        for where in ("runs", "again"):  # "again" was imported, and records the layers, too
            out = run("ckpt", "export", where, "--format", "torch", "--out", f"torch-{where}", cwd=self.folder)
            self.assertIn("weights of ", out)
            self.assertIn("for PyTorch", out)
            exported, metadata = read_safetensors(self.at(f"torch-{where}/model.safetensors"))
            self.assertEqual(metadata, {"format": "pt"})
            for name, (shape, values) in ours.items():
                if name.startswith("optimizer."):
                    continue
                linear = len(shape) == 2 and not name.startswith("embed.")
                self.assertEqual(exported[name], (shape[::-1], turned(values, *shape)) if linear else (shape, values), name)
        self.assertEqual(exported["block0.proj.weight"][0], [WIDTH, WIDTH])
        first_losses = set()
        for path in ("runs", "torch-runs"):
            self.at("metrics").unlink(missing_ok=True)
            run("plan.lua", "--nproc", 2, "--set", f"path={path}", "--metrics", "metrics", cwd=self.folder)
            first_losses.add(json.loads(self.at("metrics").read_text().splitlines()[0])["loss"])
        self.assertEqual(len(first_losses), 1, first_losses)


class Mistakes(Folders):
    def refused(self, part, *words, code=16):
        self.assertIn(part, run(*words, cwd=self.folder, code=code))

    def importing(self, part, **changes):
        self.theirs(**changes)
        self.refused(part, "ckpt", "import", "theirs", "--out", "runs")

    def test_folders(self):
        known = "it has GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, "
        self.importing("theirs/config.json: prun has no architecture BertForMaskedLM; " + known, config={"architectures": ["BertForMaskedLM"]})
        self.importing("You can describe it in theirs/prun.yaml (runtime/checkpoint/README.md)", config={"architectures": ["BertForMaskedLM"]})
        self.importing("prun has no architecture LlamaForCasualLM (did you mean 'LlamaForCausalLM'?); ", config={"architectures": ["LlamaForCasualLM"]})
        self.importing("config.json: 'hidden_size' is \"big\"", config={"hidden_size": "big"})
        self.importing("config.json: 'num_hidden_layers' is null", config={"num_hidden_layers": None})
        self.importing("1000000000000 layers are more than 100000", config={"num_hidden_layers": 10**12})
        self.importing("config.json: its weights are quantized, which prun has not", config={"quantization_config": {}})
        self.importing("config.json: the rotary angles are scaled (rope_scaling 'yarn'), and prun has default, linear and llama3",
                       config={"rope_scaling": {"rope_type": "yarn"}})
        self.importing("config.json: rope_scaling has no 'factor'", config={"rope_scaling": {"type": "linear"}})
        self.importing("config.json: rope_parameters has no 'low_freq_factor'", config={"rope_parameters": {"rope_type": "llama3", "factor": 8}})
        self.importing("config.json: prun.models.llama has silu in its MLP, not gelu", config={"hidden_act": "gelu"})
        self.importing("theirs: there is no tensor model.norm.weight, which LlamaForCausalLM as config.json has it needs", left_out=["model.norm.weight"])
        self.importing("model.norm.weight is [9], and by config.json it should be [8]", shapes={"model.norm.weight": (9,)})
        self.importing("theirs: it has a tensor model.extra, which LlamaForCausalLM as config.json has it does not", shapes={"model.extra": (2,)})
        file = self.theirs() / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-9])
        self.refused("the file is cut", "ckpt", "import", "theirs", "--out", "runs")
        file.rename(self.at("theirs/pytorch_model.bin"))
        self.refused("its weights are a pickle (pytorch_model.bin)", "ckpt", "import", "theirs", "--out", "runs")
        self.at("theirs/pytorch_model.bin").unlink()
        self.refused("neither model.safetensors nor model.safetensors.index.json", "ckpt", "import", "theirs", "--out", "runs")
        self.at("empty").mkdir()
        self.refused("there are no weights in empty: no config.json", "ckpt", "import", "empty", "--out", "runs")

    def test_plans_that_begin_with_other_weights(self):
        self.theirs()
        self.plan()
        run("check", "plan.lua", "--nproc", 2, cwd=self.folder)
        where = "prun: plan.lua:7: the weights of "
        for setting, part in (("heads=2", "head_size is 2 there and 4 here, heads is 4 there and 2 here; there it is prun.models.llama { "),
                              ("eps=1e-5", "eps is 1e-06 there and 1e-05 here"), ("width=16", "width is 8 there and 16 here"),
                              ("vocab=300", "vocab is 256 there and 300 here")):
            self.assertIn(where, run("check", "plan.lua", "--set", setting, cwd=self.folder, code=16))
            self.refused(part, "check", "plan.lua", "--set", setting)
        self.refused("prun: plan.lua:7: prun.init.from: no folder 'thiers' (did you mean 'theirs'?)", "check", "plan.lua", "--set", "path=thiers", code=3)
        self.plan("gpt { vocab = 256, layers = 1, width = 8, heads = 4, context = 16 }")
        self.refused("they are of prun.models.llama, and the plan has prun.models.gpt", "check", "plan.lua")

    def test_what_cannot_be_exported(self):
        self.theirs()
        self.plan()
        run("ckpt", "import", "theirs", "--out", "runs", cwd=self.folder)
        self.refused("theirs has files already: --out names a folder that is made", "ckpt", "export", "runs", "--format", "hf", "--out", "theirs", code=2)
        path = self.at("runs/step_00000000/index.json")
        index = json.loads(path.read_text())
        for name, part in (("", "step_00000000 does not say which model it holds"),
                           ("moe", "holds the GPT form of moe, which has no Hugging Face form"),
                           ("mlp", "holds the model 'mlp', which has no Hugging Face form; prun.models.gpt, prun.models.llama"),
                           ("gpt", "as GPT2LMHeadModel it should have embed.position.weight [16, 8], and it has none")):
            path.write_text(json.dumps({**index, "model": {**index["model"], "name": name}}))
            self.refused(part, "ckpt", "export", "runs", "--format", "hf", "--out", "back")
        self.refused("it has no optimizer state: its weights begin a run anew with init = prun.init.from { path = ", "plan.lua", "--resume", "runs")


    def test_models_of_all_options_are_exported(self):
        """An option that the description of an architecture does not mention is refused."""
        for model in ("gpt", "llama", "mixtral"):
            with self.subTest(model):
                self.plan(f"{model} {{ vocab = 256, layers = 1, width = 8, heads = 2, context = 16 }}")
                self.at("plan.lua").write_text(self.at("plan.lua").read_text().replace("  init = ", "  -- "))
                run("plan.lua", "--checkpoint", model, cwd=self.folder)
                run("ckpt", "export", model, "--format", "hf", "--out", f"{model}.hf", cwd=self.folder)
                self.assertTrue(self.at(f"{model}.hf/config.json").exists())

    def test_configs_that_no_option_expresses(self):
        def refused(part, name, **config):
            self.importing(part, config={"architectures": [name + "ForCausalLM"], **config})
        refused("config.json: its attention sees 8 tokens (sliding_window), prun's all", "Mistral", sliding_window=8)
        refused("config.json: its attention sees 4096 tokens (sliding_window), prun's all", "Mistral", max_position_embeddings=8192)
        refused("config.json: its attention sees 8 tokens (sliding_window), prun's all", "Qwen2", sliding_window=8, use_sliding_window=True)
        refused("config.json: the rotary angles are scaled (rope_parameters 'longrope'), and prun has default", "Phi3",
                rope_parameters={"rope_type": "longrope"})
        refused("config.json: partial_rotary_factor is 0.5: prun rotates whole heads", "Phi3", rope_parameters={"partial_rotary_factor": 0.5})
        refused("config.json: 'no_rope_layers' is [1,0,0,1]: prun has only lists in which each n-th entry is 0", "SmolLM3",
                no_rope_layers=[1, 0, 0, 1])
        refused("config.json: 'hidden_act' is relu, and prun.models.llama has gelu_pytorch_tanh, gelu_new, gelu", "Starcoder2", hidden_act="relu")
        refused("there is no tensor model.layers.0.self_attn.q_proj.bias, which Qwen2ForCausalLM as config.json has it needs", "Qwen2")
        refused("there is no tensor model.layers.0.self_attn.qkv_proj.weight, which Phi3ForCausalLM", "Phi3")

    def test_models_that_an_architecture_cannot_express(self):
        self.theirs()
        self.plan(LLAMA.replace("eps = arg.eps", "eps = arg.eps, qkv_bias = true, unrotated = 2"))
        self.at("plan.lua").write_text(self.at("plan.lua").read_text().replace("init = prun.init.from { path = arg.path },", ""))
        run("plan.lua", "--checkpoint", "runs", cwd=self.folder)
        text = run("ckpt", "export", "runs", "--out", "back", cwd=self.folder, code=16)
        self.assertIn("holds a prun.models.llama that no architecture has; --description FILE describes another one:", text)
        for part in ("qkv_bias is 1, and LlamaForCausalLM has 0", "unrotated is 2, and Qwen2ForCausalLM has 0", 'mlp is "swiglu", which Starcoder2ForCausalLM does not have'):
            self.assertIn(part, text)
        self.refused("is no MistralForCausalLM: qkv_bias is 1, and MistralForCausalLM has 0", "ckpt", "export", "runs", "--out", "back",
                     "--description", "mistral")
        self.refused("describes prun.models.gpt, and runs/step_00000001 holds prun.models.llama", "ckpt", "export", "runs", "--out", "back",
                     "--description", "gpt2")
        self.refused("--description: there is no file 'mistrall', and no architecture of this name (did you mean 'mistral'?)",
                     "ckpt", "export", "runs", "--out", "back", "--description", "mistrall", code=2)


OWN = """local prun = require "prun"
local nn = prun.nn
local arg = prun.args { path = "", steps = 2 }
local function model(batch)
  local x = nn.unit("embed", function() return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }, { "normal", 0.02 })) end)
  for i = 0, 1 do
    x = nn.unit("part" .. i, function()
      local inner = nn.layernorm("ln", x)
      return x + nn.linear("down", nn.silu_mul(nn.linear("gate", inner, 12), nn.linear("up", inner, 12)), 8, { bias = false })
    end)
  end
  return nn.unit("head", function() return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets) end)
end
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = model,
  init = arg.path ~= "" and prun.init.from { path = arg.path } or nil,
  data = prun.data.bytes { path = "text/sample.txt", batch = 4, context = 8 },
  strategy = { prun.zero3 { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e-3 },
  steps = arg.steps,
}
"""
DESCRIPTION = """# of a model of the plan's own
architecture: OwnForCausalLM
model_type: own
config: { hidden_size: 8, layer_count: 2 }
tensors:
  - { tensor: table, ours: embed.token.weight }
  - { tensor: out, ours: head.logits.weight, layout: out_in }
  - { tensor: out_bias, parts: [[head.logits.bias, 100, 156], [head.logits.bias, 0, 100]] }
  - { tensor: again, ours: embed.token.weight, copy: true }
layers:
  theirs: blocks.{layer}.
  ours: part{layer}.
  tensors:
    - { norm: norm, ours: ln, bias: true }
    - { linear: gate_up, ours: [gate, up], out: [12, 12], bias: true }
    - { linear: down, ours: down, layout: in_out }
"""


class Descriptions(Folders):
    """A model of a plan's own, written and read under names of its own."""

    def losses(self, *sets):
        self.at("metrics").unlink(missing_ok=True)
        run("plan.lua", "--nproc", 2, "--metrics", "metrics", *sets, cwd=self.folder)
        return [json.loads(line)["loss"] for line in self.at("metrics").read_text().splitlines()]

    def setUp(self):
        super().setUp()
        self.at("plan.lua").write_text(OWN)
        self.at("own.yaml").write_text(DESCRIPTION)

    def test_there_and_back(self):
        losses = self.losses("--checkpoint", "runs", "--checkpoint-every", 1)
        ours = checkpoint_tensors(self.at("runs/step_00000001"))
        for form in ("hf", "torch"):
            run("ckpt", "export", "runs/step_00000001", "--format", form, "--description", "own.yaml", "--out", form, cwd=self.folder)
            theirs, _ = read_safetensors(self.at(form) / "model.safetensors")
            self.assertEqual(len(theirs), 14 if form == "torch" else 13)
            self.assertEqual(theirs["table"], ours["embed.token.weight"])
            self.assertEqual(theirs["out"], ([256, 8], turned(ours["head.logits.weight"][1], 8, 256)))
            bias = ours["head.logits.bias"][1]
            self.assertEqual(theirs["out_bias"], ([256], bias[100:] + bias[:100]))
            self.assertEqual(theirs["blocks.1.down.weight"], ours["part1.down.weight"])
            rows = turned(ours["part1.gate.weight"][1], 8, 12) + turned(ours["part1.up.weight"][1], 8, 12)
            self.assertEqual(theirs["blocks.1.gate_up.weight"], ([24, 8], rows))
            self.assertEqual(theirs["blocks.0.gate_up.bias"], ([24], ours["part0.gate.bias"][1] + ours["part0.up.bias"][1]))
            self.assertEqual(theirs.get("again"), ours["embed.token.weight"] if form == "torch" else None)
        config = json.loads(self.at("hf/config.json").read_text())
        self.assertEqual((config["architectures"], config["model_type"], config["layer_count"]), (["OwnForCausalLM"], "own", 2))
        shutil.rmtree(self.at("runs/step_00000002"))
        whole = self.losses("--set", "path=runs/step_00000001", "--set", "steps=1")
        for form in ("hf", "torch"):  # each has a copy of the description, prun.yaml
            run("ckpt", "import", form, "--out", f"{form}-runs", cwd=self.folder)
            self.assertEqual(self.losses("--set", f"path={form}", "--set", "steps=1"), whole)
        self.assertNotEqual(whole, losses[:1])

    def test_matrices_of_all_experts(self):
        """Theirs has for each expert the rows of gate, then those of up, as transformers' MixtralExperts."""
        block = 'x + nn.linear("down", nn.silu_mul(nn.linear("gate", inner, 12), nn.linear("up", inner, 12)), 8, { bias = false })'
        self.at("plan.lua").write_text(OWN.replace(block, 'x + nn.moe("moe", inner, { experts = 3, hidden = 12, gated = true })'))
        layer = DESCRIPTION[DESCRIPTION.index("    - { linear: gate_up"):]
        self.at("own.yaml").write_text(DESCRIPTION.replace(layer, """    - { linear: router, ours: moe.router }
    - { tensor: gate_up, parts: [[moe.gate.weight, 0, 12], [moe.up.weight, 0, 12]], layout: out_in }
    - { tensor: down, ours: moe.down.weight, layout: out_in }
"""))
        self.losses("--checkpoint", "runs", "--checkpoint-every", 1)
        ours = checkpoint_tensors(self.at("runs/step_00000001"))
        run("ckpt", "export", "runs/step_00000001", "--format", "torch", "--description", "own.yaml", "--out", "torch", cwd=self.folder)
        theirs, _ = read_safetensors(self.at("torch/model.safetensors"))
        gate, up, down = (ours[f"part1.moe.{name}.weight"][1] for name in ("gate", "up", "down"))
        rows = [turned(matrix[e * 96:e * 96 + 96], 8, 12) for e in range(3) for matrix in (gate, up)]
        self.assertEqual(theirs["blocks.1.gate_up"], ([3, 24, 8], sum(rows, [])))
        self.assertEqual(theirs["blocks.1.down"], ([3, 8, 12], sum((turned(down[e * 96:e * 96 + 96], 12, 8) for e in range(3)), [])))
        shutil.rmtree(self.at("runs/step_00000002"))
        whole = self.losses("--set", "path=runs/step_00000001", "--set", "steps=1")
        self.assertEqual(self.losses("--set", "path=torch", "--set", "steps=1"), whole)

    def test_mistakes(self):
        run("plan.lua", "--checkpoint", "runs", cwd=self.folder)
        words = ("ckpt", "export", "runs", "--format", "torch", "--out", "out", "--description", "own.yaml")
        for old, new, message in (
                ("tensors:\n  - { t", "tensor:\n  - { t", "own.yaml:5: a description has no field 'tensor' (did you mean 'tensors'?)"),
                ("layout: out_in", "layuot: out_in", "own.yaml:7: a tensor has no field 'layuot' (did you mean 'layout'?)"),
                ("layout: in_out", "layout: inout", "own.yaml:16: there is no layout 'inout' (did you mean 'in_out'?)"),
                ("ours: down", "our: down", "own.yaml:16: a linear layer has no field 'our' (did you mean 'ours'?)"),
                ("ours: ln, bias: true", "ours: ln, bias: yes", "own.yaml:14: there is no option or size 'yes'"),
                ("ours: ln, bias: true", "ours: ln, size: 8 +", "own.yaml:14: '8 +' is no formula: it ends too early"),
                ("config: {", "like: lama\nconfig: {", "own.yaml:4: there is no description 'lama'"),
                ("config: {", "config: {{", "own.yaml:4: "),
                ("ours: embed.token.weight }", "ours: embed.tokens.weight }", "own.yaml:6: there is no tensor embed.tokens.weight"),
                ("[gate, up], out: [12, 12]", "gate", "12 of the 12 elements of part0.up.bias are in no tensor of own.yaml"),
                ("out: [12, 12]", "out: [12]", "own.yaml:15: out has 1 size, and there are 2 layers"),
                ("[head.logits.bias, 0, 100]", "[head.logits.bias, 0, 99]", "1 of the 256 elements of head.logits.bias are in no tensor of own.yaml"),
                ("ours: head.logits.weight, ", "ours: head.logits.bias, ", "own.yaml:7: head.logits.bias is [256]; only a matrix has a layout")):
            with self.subTest(message=message):
                self.assertIn(old, DESCRIPTION)
                self.at("own.yaml").write_text(DESCRIPTION.replace(old, new))
                text = run(*words, cwd=self.folder, code=16)
                self.assertIn(message, text)


class Guide(Folders):
    def test_its_description(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "runtime/checkpoint/README.md").read_text()
        self.at("qwen2.yaml").write_text(re.findall(r"```yaml\n(.*?)```", text, re.S)[0])
        self.theirs()
        run("ckpt", "import", "theirs", "--out", "runs", cwd=self.folder)
        self.assertIn("is no Qwen2ForCausalLM: qkv_bias is 0, and Qwen2ForCausalLM has 1",
                      run("ckpt", "export", "runs", "--description", "qwen2.yaml", "--out", "back", cwd=self.folder, code=16))

    def test_its_commands(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "runtime/checkpoint/README.md").read_text()
        text = text[text.index("## Commands"):]
        (name, plan), = re.findall(r"```lua\n-- (\S+\.lua)(:.*?)```", text, re.S)
        self.at(name).write_text("--" + plan)
        commands, = re.findall(r"```sh\n(.*?)```", text, re.S)
        for command in commands.splitlines():
            words = command.partition("#")[0].split()
            self.assertEqual(words[0], "prun")
            run(*words[1:], cwd=self.folder)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
