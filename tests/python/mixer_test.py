#!/usr/bin/env python3
"""The MLP-mixer of lua/prun/README.md against PyTorch: ten steps in f64 on one and on two ranks, from the same weights.

Usage: mixer_test.py PRUN VENV. VENV: see export_families_test.py.
"""
import pathlib
import re
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import packages  # noqa: E402

packages.run_inside(__file__, sys.argv[2])
import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]
import reference  # noqa: E402

PRUN, STEPS, RATE = sys.argv[1], 10, 0.05
WIDTH, HIDDEN, LAYERS = 16, 12, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.token = nn.Sequential(nn.Linear(4, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 4))
        self.channel = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.token(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.ln2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln, self.out = nn.LayerNorm(WIDTH), nn.Linear(4 * WIDTH, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.out(self.ln(self.blocks(x)).flatten(1))

    def tensors(self):
        """Returns the plan's tensors by name."""
        result = {}

        def linear(name, layer):
            result[f"{name}.weight"], result[f"{name}.bias"] = layer.weight.flatten(1).T, layer.bias

        def norm(name, layer):
            result[f"{name}.weight"], result[f"{name}.bias"] = layer.weight, layer.bias

        linear("embed.patch", self.patch)
        for i, block in enumerate(self.blocks):
            norm(f"block{i}.ln1", block.ln1), norm(f"block{i}.ln2", block.ln2)
            for name in ("token", "channel"):
                part = getattr(block, name)
                linear(f"block{i}.{name}1", part[0]), linear(f"block{i}.{name}2", part[2])
        norm("head.ln", self.ln), linear("head.out", self.out)
        return result


class MixerTest(unittest.TestCase):
    def test_ten_steps(self):
        from prun.export import weights
        with tempfile.TemporaryDirectory(prefix="prun-mixer-") as place:
            folder = pathlib.Path(place)
            text = (HERE.parents[1] / "lua/prun/README.md").read_text()
            plan = re.search(r"```lua\n(-- mixer\.lua.*?)```", text, re.S).group(1)
            self.assertLessEqual(plan.count("\n"), 40)
            init = f'  init = prun.init.from {{ path = "{folder}/start" }},\n  strategy '
            (folder / "mixer.lua").write_text(plan.replace("  strategy ", init))
            torch.manual_seed(0)
            module = Mixer().double()
            x, y = torch.randn(8, 3, 8, 8, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)
            numpy.save(folder / "x.npy", x.numpy()), numpy.save(folder / "y.npy", y.numpy())
            (folder / "start").mkdir()
            weights.write({name: t.detach().contiguous() for name, t in module.tensors().items()},
                          folder / "start/model.safetensors")
            optimizer, losses = torch.optim.SGD(module.parameters(), lr=RATE), []
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(module(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            for ranks in (1, 2):
                ours, tensors = reference.run(PRUN, folder / "mixer.lua", folder / f"out{ranks}", ranks,
                                              [f"x={folder}/x.npy", f"y={folder}/y.npy", "dtype=f64"], ["--device", "reference"])
                self.assertEqual(len(ours), STEPS)
                self.assertLess(max(abs(a - b) / b for a, b in zip(ours, losses)), 1e-12)
                for name, tensor in module.tensors().items():
                    self.assertLess((tensors[name] - tensor).abs().max().item(), 1e-12, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
