#!/usr/bin/env python3
"""Sums of losses, named parts and metrics against PyTorch, in f64 on several meshes: the losses, named numbers and
evaluations of five steps differ by at most 1e-12. Usage: losses_test.py PRUN VENV
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import packages  # noqa: E402

PRUN, VENV = sys.argv[1], sys.argv[2]
packages.run_inside(__file__, VENV)
import numpy  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

STEPS, SAMPLES, WIDTH, BLOCKS = 5, 12, 24, 3
PLAN = """
local prun = require "prun"
local nn, losses = prun.nn, prun.losses
local arg = prun.args { axes = "", data_parallel = "zero3", ids = false }
local mesh, strategy = {}, {}
for name, size in arg.axes:gmatch "(%w+)(%d+)" do
  mesh[#mesh + 1] = { name, math.tointeger(size) }
  if name == "dp" then strategy[#strategy + 1] = prun[arg.data_parallel] { axis = "dp" } end
  if name == "tp" then
    strategy[#strategy + 1] = prun.tensor_parallel { axis = "tp", column = { "up" }, row = { "down" }, rows = {} }
  end
  if name == "pp" then strategy[#strategy + 1] = prun.pipeline { axis = "pp", schedule = "1f1b" } end
end
local function model(batch)
  local early
  local x = nn.unit("embed", function() return nn.linear("in", batch.x, WIDTH) end)
  for i = 0, BLOCKS - 1 do
    x = nn.unit("block" .. i, function()
      local y = x + nn.linear("down", nn.gelu(nn.linear("up", nn.layernorm("ln", x), 2 * WIDTH), "none"), WIDTH)
      if i == 1 then early = losses.mean_square(y) end
      return y
    end)
  end
  return nn.unit("head", function()
    local out, other = nn.linear("out", x, 4), nn.linear("other", x, 4)
    local l2 = (0.01 * losses.l2 "*.weight"):named "l2"
    if arg.ids then
      local text, z = losses.cross_entropy(out, batch.y), losses.z_loss(out):named "z"
      return 2 * text - losses.cross_entropy(other, batch.y) / 4 + 1e-2 * z + 0.3 * early + l2,
        { accuracy = prun.metrics.accuracy(out, batch.y), text = text, level = prun.metrics.mean(out) }
    end
    local kl = losses.kl(out, nn.scale(out, -0.3), { temperature = 2 })
    return losses.mse(out, batch.y) + 0.7 * losses.bce(other, batch.y):named "binary" + (4 * kl):named "kl" +
      0.3 * early + l2
  end)
end
return prun.plan {
  mesh = prun.mesh(mesh), model = model, strategy = strategy, dtype = "f64", steps = 5, metrics = "steps",
  init = prun.init.from { path = "init" },
  data = prun.data.arrays { x = "x.npy", y = arg.ids and "ids.npy" or "y.npy", batch = SAMPLES },
  eval = prun.eval { every = 1, batches = 1, data =
    prun.data.arrays { x = "x.npy", y = arg.ids and "ids.npy" or "y.npy", batch = SAMPLES } },
  optimizer = prun.sgd { lr = 0.05, momentum = 0.9 }, micro = 2,
}
""".replace("WIDTH", str(WIDTH)).replace("BLOCKS", str(BLOCKS)).replace("SAMPLES", str(SAMPLES))
MESHES = [("", "zero3"), ("dp3", "ddp"), ("dp3", "zero3"), ("tp2", "zero3"), ("pp2", "zero3"), ("dp2 tp2", "zero3"),
          ("pp2 dp3", "ddp")]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.ln(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Linear(6, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.out, self.other = torch.nn.Linear(WIDTH, 4), torch.nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.embed(x)
        hidden = []
        for block in self.blocks:
            x = block(x)
            hidden.append(x)
        return self.out(x), self.other(x), hidden[1]

    def numbers(self, x, y):
        """Returns the loss and the named numbers."""
        out, other, early = self(x)
        l2 = 0.01 * sum((w ** 2).sum() for name, w in self.named_parameters() if name.endswith(".weight"))
        if y.dtype == torch.int64:
            text, z = F.cross_entropy(out, y), out.logsumexp(-1).square().mean()
            loss = 2 * text - F.cross_entropy(other, y) / 4 + 1e-2 * z + 0.3 * early.square().mean() + l2
            right = (out.argmax(-1) == y)[y >= 0].double().mean()
            return loss, {"z": z, "l2": l2, "accuracy": right, "text": text, "level": out.mean()}
        teacher = (-0.3 * out / 2).detach().log_softmax(-1)
        kl = 4 * F.kl_div((out / 2).log_softmax(-1), teacher, log_target=True, reduction="batchmean")
        binary = F.binary_cross_entropy_with_logits(other, y)
        loss = F.mse_loss(out, y) + 0.7 * binary + kl + 0.3 * early.square().mean() + l2
        return loss, {"binary": binary, "kl": kl, "l2": l2}


def save(model, folder):
    names = {"embed": "embed.in", "out": "head.out", "other": "head.other"}
    tensors = {}
    for name, value in model.state_dict().items():
        module, of = name.rsplit(".", 1)
        tensors[f"{names.get(module, module.replace('blocks.', 'block'))}.{of}"] = value.clone()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")


class Losses(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        generator = numpy.random.default_rng(1)
        self.arrays = {"x": generator.normal(size=(SAMPLES, 6)),
                       "y": generator.uniform(size=(SAMPLES, 4)),
                       "ids": generator.integers(0, 4, size=(SAMPLES,)).astype("int32")}
        for name, array in self.arrays.items():
            numpy.save(self.folder / f"{name}.npy", array)
        self.model = Model().double()
        save(self.model, self.folder / "init")
        (self.folder / "plan.lua").write_text(PLAN)

    def of_torch(self, which):
        x, y = torch.from_numpy(self.arrays["x"]), torch.from_numpy(self.arrays[which])
        y = y.long() if which == "ids" else y
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        rows = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss, named = self.model.numbers(x, y)
            loss.backward()
            optimizer.step()
            row = {"loss": loss.item(), **{name: value.item() for name, value in named.items()}}
            loss, named = self.model.numbers(x, y)
            row.update({"eval_loss": loss.item(), **{f"eval_{name}": value.item() for name, value in named.items()}})
            rows.append(row)
        return rows

    def compare(self, which):
        expected = self.of_torch(which)
        for axes, data_parallel in MESHES:
            metrics = self.folder / "metrics.jsonl"
            metrics.unlink(missing_ok=True)
            ranks = int(numpy.prod([int(part[2:]) for part in axes.split()]))
            sets = (f"axes={axes}", f"ids={str(which == 'ids').lower()}", f"data_parallel={data_parallel}")
            words = [PRUN, "plan.lua", "--nproc", ranks, "--device", "reference", "--metrics", metrics]
            for one in sets:
                words += ["--set", one]
            subprocess.run(list(map(str, words)), check=True, capture_output=True, cwd=self.folder)
            rows = [json.loads(line) for line in metrics.read_text().splitlines()]
            self.assertEqual(len(rows), STEPS)
            for row, right in zip(rows, expected):
                for name, value in right.items():
                    where = f"{name} of step {row['step']} on '{axes}'"
                    self.assertAlmostEqual(row[name] / value, 1, delta=1e-12, msg=where)

    def test_of_numbers(self):
        self.compare("y")

    def test_of_ids(self):
        self.compare("ids")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
