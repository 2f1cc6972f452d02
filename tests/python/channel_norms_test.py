#!/usr/bin/env python3
"""Exported networks with norms of channels: ten steps of SGD and AdamW in f64 give PyTorch's losses and state_dict, with
the running statistics of batch norms; predictions are those of eval mode.

Usage: channel_norms_test.py PRUN VENV. VENV: see export_families_test.py.
"""
import copy
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import packages  # noqa: E402

packages.run_inside(__file__, sys.argv[2])
import numpy  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]
import reference  # noqa: E402
from prun import fit  # noqa: E402
from prun.export import ExportError, export  # noqa: E402

PRUN = sys.argv[1]
os.environ["PRUN_COMMAND"] = os.path.abspath(PRUN)
STEPS, BATCH, CHANNELS = 10, 8, 6
NORMS = {
    "group": (lambda: nn.GroupNorm(3, CHANNELS), 'nn.groupnorm("norm", ', ", 3)"),
    "group without parameters": (lambda: nn.GroupNorm(1, CHANNELS, eps=1e-3, affine=False),
                                 "1, { eps = 0.001, affine = false })", ""),
    "instance": (lambda: nn.InstanceNorm1d(CHANNELS), 'nn.instancenorm("norm", ', ""),
    "instance with parameters": (lambda: nn.InstanceNorm1d(CHANNELS, affine=True), "{ affine = true }", ""),
    "batch": (lambda: nn.BatchNorm1d(CHANNELS), 'nn.batchnorm("norm", ', ""),
    "batch, all else": (lambda: nn.BatchNorm1d(CHANNELS, eps=1e-3, momentum=0.25, affine=False),
                        "{ eps = 0.001, affine = false, momentum = 0.25 }", ""),
    "batch, means": (lambda: nn.BatchNorm1d(CHANNELS, momentum=None), "{ cumulative = true }", ""),
    "batch alone": (lambda: nn.BatchNorm1d(CHANNELS, track_running_stats=False), "{ track_running_stats = false }", ""),
}


class Net(nn.Module):
    """A linear layer, a norm of images [6, 4], and a linear layer, twice; `inplace` changes how PyTorch traces it."""

    def __init__(self, norm, inplace=False):
        super().__init__()
        self.first, self.norm, self.inner = nn.Linear(8, 24), norm(), nn.Linear(24, 24)
        self.second, self.act, self.last = norm(), nn.ReLU(inplace=inplace), nn.Linear(24, 4)

    def result(self, x):
        h = self.act(self.norm(self.first(x).view(-1, CHANNELS, 4))).flatten(1)
        return self.last(torch.tanh(self.second(self.inner(h).view(-1, CHANNELS, 2, 2).flatten(2))).flatten(1))

    def forward(self, x, y):
        return F.mse_loss(self.result(x), y)


class ChannelNorms(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="prun-norms-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        torch.manual_seed(0)
        self.x = torch.randn(STEPS * BATCH, 8, dtype=torch.float64) * 2 + 1
        self.y = torch.randn(STEPS * BATCH, 4, dtype=torch.float64)
        for name, rows in (("x", self.x), ("y", self.y)):
            numpy.save(self.folder / f"{name}.npy", rows.numpy())

    def module(self, norm, **more):
        module = Net(norm, **more).double().train()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
        for name, buffer in module.named_buffers():
            if "running" in name:
                buffer.copy_(torch.rand(buffer.shape) + 0.5)  # the export takes them along
        return module

    def trained(self, module, optimizer, micro=1):
        """Returns PyTorch's losses and the module that it trains, with accumulation of gradients over microbatches."""
        module, losses = copy.deepcopy(module), []
        optimizer = optimizer(module.parameters())
        size = BATCH // micro
        for step in range(STEPS):
            optimizer.zero_grad()
            losses.append(0.0)
            for first in range(step * BATCH, (step + 1) * BATCH, size):
                loss = module(self.x[first:first + size], self.y[first:first + size]) / micro
                loss.backward()
                losses[-1] += loss.item()
            optimizer.step()
        return losses, module

    def check(self, module, optimizer, lua, *texts, ranks=1, micro=1):
        losses, expected = self.trained(module, optimizer, micro)
        exported = export(module, (self.x[:BATCH], self.y[:BATCH]))
        for text in texts:
            self.assertIn(text, exported.plan)
        exported.save(self.folder / "plan")
        plan = self.folder / "plan.lua"
        plan.write_text(plan.read_text().replace("prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }", lua)
                        .replace("batch = arg.batch }", 'batch = arg.batch, order = "given" }'))
        settings = [f"file={self.folder}/x.npy", f"targets={self.folder}/y.npy", f"batch={BATCH}", f"steps={STEPS}",
                    f"micro={micro}"]
        ours, tensors = reference.run(PRUN, plan, self.folder / "out", ranks, settings, ["--device", "reference"])
        for a, b in zip(ours, losses, strict=True):
            self.assertLess(abs(a - b), 1e-12 * max(1, abs(b)))
        exported.load_tensors(tensors)
        self.assertEqual(list(module.state_dict()), list(expected.state_dict()))
        for name, value in expected.state_dict().items():
            self.assertLess((module.state_dict()[name] - value).abs().max().item(), 1e-12, name)
        return expected

    def predicted(self, module):
        out = self.folder / "out.npy"
        out.unlink(missing_ok=True)
        subprocess.run([PRUN, "predict", self.folder / "plan.lua", "--from", self.folder / "out", "--out", out,
                        "--device", "reference", "--set", f"file={self.folder}/x.npy", "--set",
                        f"targets={self.folder}/y.npy", "--set", f"batch={BATCH}"], check=True, capture_output=True)
        with torch.no_grad():
            expected = module.eval().result(self.x)
        self.assertLess(numpy.abs(numpy.load(out) - expected.numpy()).max(), 1e-12)

    def test_ten_steps_equal_pytorchs(self):
        sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)  # noqa: E731
        for name, (norm, *texts) in NORMS.items():
            with self.subTest(name):
                module = self.check(self.module(norm), sgd, "prun.sgd { lr = 0.05, momentum = 0.9 }", *texts)
                if name != "batch alone":  # whose statistics are those of the batch in eval mode, too
                    self.predicted(module)

    def test_meshes_and_microbatches_equal_pytorchs(self):
        adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)  # noqa: E731
        for ranks, micro, inplace in ((2, 1, True), (4, 1, False), (2, 2, True)):
            for name in ("batch", "batch, means", "group"):
                with self.subTest(name, ranks=ranks, micro=micro):
                    self.check(self.module(NORMS[name][0], inplace=inplace), adamw,
                               "prun.adamw { lr = 0.01, weight_decay = 0.1 }", ranks=ranks, micro=micro)

    def test_fit_trains_running_statistics(self):
        module = self.module(NORMS["batch"][0]).float()
        before = {name: value.clone() for name, value in module.named_buffers()}
        rows = fit(module, (self.x.float(), self.y.float()), batch=BATCH, steps=4, mesh="dp=2", lr=0.01, progress=False)
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        self.assertEqual(module.norm.num_batches_tracked.item(), 4)
        self.assertFalse(torch.equal(module.norm.running_mean, before["norm.running_mean"]))

    def test_torch_files_have_the_buffers(self):
        """`prun ckpt export --format torch` writes a state_dict that the module loads."""
        module = self.module(NORMS["batch"][0])
        expected = self.check(module, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), "prun.sgd { lr = 0.05, momentum = 0.9 }")
        subprocess.run([PRUN, "ckpt", "export", self.folder / "out", "--format", "torch", "--description",
                        self.folder / "plan.weights", "--out", self.folder / "theirs"], check=True, capture_output=True)
        from safetensors.torch import load_file
        fresh = self.module(NORMS["batch"][0])
        fresh.load_state_dict(load_file(self.folder / "theirs/model.safetensors"))
        for name, value in expected.state_dict().items():
            self.assertLess((fresh.state_dict()[name] - value).abs().max().item(), 1e-6, name)

    def test_refusals(self):
        class Twice(Net):
            def result(self, x):
                return super().result(x) + self.norm(self.first(x).view(-1, CHANNELS, 4)).mean((1, 2)).unsqueeze(1)

        class Parts(Net):
            def result(self, x):
                h = F.batch_norm(self.first(x).view(-1, CHANNELS, 4), None, None, training=True)
                return self.last(h.flatten(1))

        for kind, norm, problem in ((Twice, nn.BatchNorm1d, "applied twice"),
                                    (Parts, nn.BatchNorm1d, "a batch norm that is no module"),
                                    (Net, lambda c: nn.InstanceNorm1d(c, track_running_stats=True), "running statistics")):
            with self.subTest(problem), self.assertRaises(ExportError) as caught:
                export(kind(lambda norm=norm: norm(CHANNELS)).double(), (self.x[:BATCH], self.y[:BATCH]))
            self.assertIn(problem, caught.exception.problem)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
