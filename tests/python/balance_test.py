#!/usr/bin/env python3
"""Mixtral's loss with its balancing loss against transformers', in f64 on several meshes: both, and the weights after
three steps, are within 1e-10. Usage: balance_test.py PRUN VENV
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import packages  # noqa: E402

PRUN, VENV = sys.argv[1], sys.argv[2]
packages.run_inside(__file__, VENV)
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import numpy  # noqa: E402
import reference  # noqa: E402
import torch  # noqa: E402
from transformers import MixtralConfig, MixtralForCausalLM  # noqa: E402

CONTEXT, BATCH, STEPS = 16, 4, 3
CONFIG = MixtralConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=CONTEXT, vocab_size=256, num_local_experts=4,
                       num_experts_per_tok=2, router_aux_loss_coef=0.05, output_router_logits=True,
                       experts_implementation="eager", bos_token_id=None, eos_token_id=None)
PLAN = """local prun = require "prun"
local arg = prun.args { axes = "" }
local makers = { dp = "zero3", ep = "expert_parallel", tp = "tensor_parallel", pp = "pipeline" }
local mesh, strategy = {}, {}
for name, size in arg.axes:gmatch "(%w+)(%d+)" do
  mesh[#mesh + 1] = { name, math.tointeger(size) }
  strategy[#strategy + 1] = prun[makers[name]] { axis = name }
end
return prun.plan {
  mesh = prun.mesh(mesh), strategy = strategy, dtype = "f64", steps = 3, micro = 1,
  model = prun.models.mixtral { vocab = 256, layers = 4, width = 32, heads = 4, kv_heads = 2, hidden = 48, experts = 4,
                                context = 16, choices = 2, aux = 0.05, eps = 1e-5 },
  init = prun.init.from { path = "init" },
  data = prun.data.bytes { path = "window", batch = 4 },
  optimizer = prun.sgd { lr = 0.5 },
}
"""


class Balance(unittest.TestCase):
    def test_losses_equal_transformers(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        torch.manual_seed(1)
        window = bytes(torch.randint(0, 256, (CONTEXT + 1,)).tolist())  # one sample, so that every batch is that sample
        (folder / "window").write_bytes(window)
        (folder / "plan.lua").write_text(PLAN)
        model = MixtralForCausalLM(CONFIG)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "gate.weight" in name or "router" in name:
                    weight.mul_(20)  # so that the experts' loads differ
        model.save_pretrained(folder / "init")
        model = model.double().train()
        reference.exact_angles(model)
        tokens = torch.tensor(list(window))[None].repeat(BATCH, 1)
        labels = tokens[:, 1:].contiguous()
        optimizer, expected = torch.optim.SGD(model.parameters(), lr=0.5), []
        for _ in range(STEPS):
            optimizer.zero_grad()
            with reference.Wide():
                done = model(tokens[:, :-1], labels=labels, shift_labels=labels)
            done.loss.backward()
            optimizer.step()
            expected.append((done.loss.item(), done.aux_loss.item()))
        self.assertGreater(abs(expected[0][1] - 2), 0.01)  # 2 if the loads were equal
        for axes in ("", "dp2", "ep2", "tp2", "pp2", "pp2 ep2"):
            ranks = int(numpy.prod([int(part[2:]) for part in axes.split()]))
            metrics = folder / "metrics.jsonl"
            metrics.unlink(missing_ok=True)
            subprocess.run([PRUN, str(folder / "plan.lua"), "--nproc", str(ranks), "--device", "reference", "--metrics",
                            str(metrics), "--set", f"axes={axes}"], check=True, cwd=folder, capture_output=True)
            for row, (loss, balance) in zip(map(json.loads, metrics.read_text().splitlines()), expected):
                self.assertAlmostEqual(row["balance"], balance, delta=1e-10, msg=f"step {row['step']} on '{axes}'")
                self.assertAlmostEqual(row["loss"], loss, delta=1e-10, msg=f"step {row['step']} on '{axes}'")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
