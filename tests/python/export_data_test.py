#!/usr/bin/env python3
"""prun.export of ids that a module computes, biases of attention scores, constants, layers that are applied several times,
and stops of gradients: the Lua, and training steps in f64 against PyTorch.

Usage: export_data_test.py PRUN VENV. VENV: see export_families_test.py.
"""
import copy
import pathlib
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
from prun.export import ExportError, export  # noqa: E402

PRUN, RATE, STEPS = sys.argv[1], 0.1, 3
BATCH, TOKENS, VOCAB, WIDTH, HEADS = 8, 6, 12, 16, 2
MESHES = [(1, []), (2, []), (2, ["micro=2"]), (2, ["pp=2", "micro=2"]), (2, ["tp=2"])]


class Texts(nn.Module):
    """A class of each text or of each token: an embedding, `change`, one layer of attention."""

    def __init__(self, change=None, bias=None, pick=None, dropout=0.0):
        super().__init__()
        self.table, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS + 2, WIDTH, padding_idx=0)
        self.relative = nn.Embedding(8, HEADS)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.out = nn.Linear(WIDTH, 3)
        self.change, self.bias, self.pick, self.dropout = change, bias, pick, dropout
        if change is None:
            del self.places
        if bias is None or "relative" not in bias.__code__.co_names:
            del self.relative

    def forward(self, ids, mask, labels):
        x = self.table(ids)
        if self.change is not None:
            x = self.change(self, x, ids, mask, labels)
        q, k, v = self.blocks[0](x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        hidden = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(mask == 0, -1e30)[:, None, None]
        scores = q @ k.transpose(-1, -2) * 0.3
        if self.bias is not None:
            scores = scores + self.bias(self)
        weights = F.dropout((scores + hidden).softmax(-1), self.dropout)
        x = x + self.blocks[1]((weights @ v).transpose(1, 2).flatten(2))
        logits = self.out(x)
        if self.pick is not None:
            logits = logits[torch.arange(len(ids)), self.pick(ids)]
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def buckets():
    """Returns the bucket of each pair of a query and a key; 0 to 7."""
    distance = torch.arange(TOKENS) - torch.arange(TOKENS)[:, None]
    return (distance.abs().clamp(max=3) + 4 * (distance > 0)).clamp(max=7)


class Data(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="prun-data-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        torch.manual_seed(0)

    def texts(self, each_token=True):
        mask = (torch.arange(TOKENS) < torch.tensor([TOKENS - i % 4 for i in range(BATCH)])[:, None]).long()
        ids = torch.randint(1, VOCAB, (BATCH, TOKENS)) * mask
        labels = torch.randint(0, 3, (BATCH, TOKENS)).masked_fill(torch.rand(BATCH, TOKENS) < 0.3, -100)
        return {"ids": ids, "mask": mask, "labels": labels if each_token else labels[:, 0].clamp(min=0)}

    def same(self, module, batch, *lua, meshes=MESHES):
        """Checks the plan's text, and that steps of SGD give PyTorch's losses and weights on each mesh."""
        module = module.double()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
        trained = copy.deepcopy(module)
        exported = export(module, batch)
        for text in lua:
            self.assertIn(text, exported.plan)
        exported.save(self.folder / "plan")
        plan = self.folder / "plan.lua"
        plan.write_text(plan.read_text().replace(
            "prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }", f"prun.sgd {{ lr = {RATE} }}"))
        optimizer, losses = torch.optim.SGD(trained.parameters(), lr=RATE), []
        for _ in range(STEPS):
            loss = trained(**batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        settings = [f"batch={BATCH}", f"steps={STEPS}"]
        files = list(exported.template.arrays) or ["file", "targets"]
        for file, (name, value) in zip(files, [(name, batch[name]) for name in exported.template.arrays] or batch.items()):
            numpy.save(self.folder / f"{name}.npy", value.numpy() if value.is_floating_point() else value.int().numpy())
            settings.append(f"{file}={self.folder / name}.npy")
        for ranks, more in meshes:
            with self.subTest(ranks=ranks, settings=more):
                ours, tensors = reference.run(PRUN, plan, self.folder / "out", ranks, settings + more,
                                              ["--device", "reference"])
                self.assertLess(max(abs(a - b) / b for a, b in zip(ours, losses, strict=True)), 1e-12)
                copied = copy.deepcopy(module)
                exported.load_tensors(tensors)
                for (name, a), b in zip(module.named_parameters(), trained.parameters()):
                    self.assertLess((a - b).abs().max().item(), 1e-12, name)
                module.load_state_dict(copied.state_dict())
        return exported

    def test_positions_counted_from_ids(self):
        """Positions of padding are the padding of their table, which has no gradient."""
        def counted(module, x, ids, mask, labels):
            real = ids.ne(0).int()
            return x + module.places((torch.cumsum(real, 1).type_as(real) * real).long() + 0)

        self.same(Texts(counted), self.texts(), "local ids = nn.not_equal(batch.ids, 0)", "nn.cumsum(ids, 1) * ids",
                  "nn.detach(embedded2)")

    def test_targets_shifted_to_the_right(self):
        def shifted(module, x, ids, mask, labels):
            before = labels.new_zeros(labels.shape)
            before[:, 1:] = labels[:, :-1].clone()
            before[:, 0] = 2
            before.masked_fill_(before == -100, 0)
            return x + module.places(before + 1)

        self.same(Texts(shifted), self.texts(), "nn.pad(nn.slice(batch.labels, 1, 0, 5), 1, 1, 0, 2)",
                  "nn.where(nn.equal(ids, -1), 0, ids) + 1")

    def test_the_last_token(self):
        def last(ids):
            return (torch.arange(TOKENS) * ids.ne(0).int()).argmax(-1)

        self.same(Texts(pick=last), self.texts(False), "nn.argmax(", "nn.gather(")
        self.same(Texts(pick=lambda ids: ids.argmax(-1)), self.texts(False), "nn.argmax(batch.ids, -1)")

    def test_biases_of_scores(self):
        slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)[:, None, None]
        for name, bias, lua in [
            ("ALiBi", lambda module: slopes * torch.arange(TOKENS), 'nn.parameter("constant.weight", { 2, 1, 6 })'),
            ("numbers", lambda module: slopes * torch.arange(36.0).double().view(6, 6).sin(),
             'nn.parameter("constant.weight", { 2, 6, 6 })'),
            ("relative", lambda module: module.relative(buckets()).permute(2, 0, 1)[None],
             'nn.relative(nn.matmul(nn.parameter("buckets.weight", { 11, 8 })'),
        ]:
            with self.subTest(name):
                exported = self.same(Texts(bias=bias), self.texts(), lua, "bias = ")
                self.assertIn("frozen    = ", exported.plan)

    def test_dropout_of_weights(self):
        exported = export(Texts(dropout=0.25), self.texts())
        self.assertIn("causal = false, mask = batch.mask, dropout = 0.25", exported.plan)

    def test_rows_in_the_order_of_noise(self):
        """A masked autoencoder: noise sorts the patches, of which the first ones are kept; equal numbers keep their order."""
        class Masked(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers, self.last = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)]), nn.Linear(8, 4)
                self.hidden = nn.Parameter(torch.zeros(1, 1, 8))

            def forward(self, x, noise):
                order = noise.argsort(dim=1, stable=True)
                places = order.argsort(dim=1)
                kept = self.layers[0](x).gather(1, order[:, :2].unsqueeze(-1).repeat(1, 1, 8))
                kept = torch.tanh(self.layers[1](kept))
                all_rows = torch.cat([kept, self.hidden.expand(len(x), 4, -1)], 1)
                all_rows = all_rows.gather(1, places.unsqueeze(-1).expand(-1, -1, 8))
                mask = torch.ones(len(x), TOKENS, dtype=x.dtype)
                mask[:, :2] = 0
                mask = mask.gather(1, places)
                loss = ((torch.tanh(self.last(all_rows)) - x) ** 2).mean(-1)
                return (loss * mask).sum() / mask.sum()

        batch = {"x": torch.randn(BATCH, TOKENS, 4, dtype=torch.float64),
                 "noise": torch.rand(BATCH, TOKENS, dtype=torch.float64).mul(4).round()}
        self.same(Masked(), batch, "nn.argmax(nn.equal(", "nn.where(nn.greater_equal(", "prun.losses.mean(")

    def test_layers_applied_several_times(self):
        class Rows(nn.Module):
            def __init__(self, times):
                super().__init__()
                self.layers, self.last, self.times = nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8)]), nn.Linear(8, 4), times

            def forward(self, x, y):
                for _ in range(self.times):
                    x = torch.tanh(self.layers[1](x + self.layers[0](x)))
                return F.mse_loss(self.last(x), y)

        rows = {"x": torch.randn(BATCH, 8, dtype=torch.float64), "y": torch.randn(BATCH, 4, dtype=torch.float64)}
        for times in (2, 4):
            exported = self.same(Rows(times), rows, 'nn.unit("layers0"', 'nn.again("layers0"', meshes=MESHES[:4])
            self.assertEqual(exported.plan.count("nn.again"), 2 * times - 2)

        class One(Rows):
            def forward(self, x, y):
                for _ in range(self.times):
                    x = torch.tanh(self.layers[0](x)) + x
                return F.mse_loss(self.last(self.layers[1](x)), y)

        self.same(One(2), rows, 'x = nn.again("layers0"', meshes=MESHES[:1])
        self.same(One(5), rows, "for _ = 1, 4 do\n      x = nn.again", meshes=MESHES[:4])

    def test_stops_of_gradients(self):
        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

            def forward(self, x, y):
                a = self.a(x)
                return F.mse_loss(a + self.b(x) * a.detach(), y)

        rows = {"x": torch.randn(BATCH, 8, dtype=torch.float64), "y": torch.randn(BATCH, 4, dtype=torch.float64)}
        self.same(Rows(), rows, "nn.detach(", meshes=MESHES[:3])

    def test_stochastic_depth(self):
        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 16), nn.Linear(8, 4)

            def forward(self, x, y):
                a = self.a(x).view(-1, 2, 8)
                if self.training:
                    kept = (0.75 + torch.rand(len(x), 1, 1, dtype=a.dtype)).floor()
                    a = a.div(0.75) * kept
                return F.mse_loss(self.b(a), y)

        rows = {"x": torch.randn(64, 8, dtype=torch.float64), "y": torch.randn(64, 2, 4, dtype=torch.float64)}
        exported = export(Rows().double(), rows)
        self.assertIn("nn.dropout(nn.equal(y2, y2), 0.25)", exported.plan)
        exported.save(self.folder / "plan")
        for name, value in rows.items():
            numpy.save(self.folder / f"{name}.npy", value.numpy())
        settings = [f"file={self.folder}/x.npy", f"targets={self.folder}/y.npy", "batch=64", "steps=2"]
        losses = [reference.run(PRUN, self.folder / "plan.lua", self.folder / "out", ranks, settings,
                                ["--device", "reference"])[0] for ranks in (1, 2)]
        for one, two in zip(*losses, strict=True):
            self.assertAlmostEqual(one, two, delta=1e-12)

    def test_losses_that_compare_samples(self):
        """One rank computes them; meshes and microbatches that divide the samples are refused."""
        class Pairs(nn.Module):
            def __init__(self, sigmoid=False):
                super().__init__()
                self.a, self.table, self.level = nn.Linear(8, 4), nn.Embedding(VOCAB, 4), nn.Parameter(torch.zeros(()))
                self.sigmoid = sigmoid

            def forward(self, x, ids):
                one, two = F.normalize(self.a(x), dim=-1), self.table(ids).mean(1)
                logits = two @ one.t() * self.level.exp()
                if self.sigmoid:
                    signs = 2 * torch.eye(len(x), dtype=x.dtype) - torch.ones_like(logits)
                    return (-F.logsigmoid(signs * logits).sum(-1)).mean()
                own = torch.arange(len(x))
                return (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2.0

        batch = {"x": torch.randn(BATCH, 8, dtype=torch.float64), "ids": torch.randint(0, VOCAB, (BATCH, TOKENS))}
        self.same(Pairs(True), batch, "nn.softplus(", "prun.losses.mean(", meshes=MESHES[:1])
        self.same(Pairs(), batch, "nn.log_softmax(", "-- The loss compares all samples", meshes=MESHES[:1])
        for ranks, more in [(2, []), (1, ["micro=2"])]:
            with self.assertRaises(AssertionError) as caught:
                settings = [f"batch={BATCH}", f"x={self.folder}/x.npy", f"ids={self.folder}/ids.npy", *more]
                reference.run(PRUN, self.folder / "plan.lua", self.folder / "out", ranks, settings)
            self.assertIn("[4, 4] ", str(caught.exception))
            self.assertIn("do not broadcast: dim -1 is 4 and 8", str(caught.exception))

    def test_a_function_with_its_own_backward(self):
        """It is no obstacle if backward is the derivative of forward."""
        class Cube(torch.autograd.Function):
            factor = 3.0

            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x ** 3

            @staticmethod
            def backward(ctx, dy):
                return dy * Cube.factor * ctx.saved_tensors[0] ** 2

        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

            def forward(self, x, y):
                return F.mse_loss(self.b(Cube.apply(self.a(x))), y)

        rows = {"x": torch.randn(BATCH, 8, dtype=torch.float64) / 4, "y": torch.randn(BATCH, 4, dtype=torch.float64)}
        self.same(Rows(), rows, meshes=[(1, [])])
        Cube.factor = 2.9
        with self.assertRaises(ExportError) as caught:
            export(Rows().double(), rows)
        self.assertIn("the autograd function Cube has a derivative of its own", caught.exception.problem)

    def test_refusals(self):
        bits = Texts(lambda module, x, ids, mask, labels: x + module.places(ids.bitwise_and(3)))
        data = Texts(bias=lambda module: torch.arange(BATCH)[:, None, None, None] * torch.ones(HEADS, TOKENS, TOKENS))
        both = Texts(bias=lambda module: module.relative(buckets()).permute(2, 0, 1) + torch.arange(TOKENS))
        for module, op, problem in [(bits, "bitwise_and", "ids that are computed in a way that a plan cannot say"),
                                    (data, "add", "numbers that are added to the scores and differ between samples"),
                                    (both, "add", "a bias of parameters and one of numbers")]:
            with self.subTest(problem), self.assertRaises(ExportError) as caught:
                export(module, self.texts())
            self.assertIn(problem, caught.exception.problem)
            self.assertEqual(caught.exception.op, op)
            self.assertTrue(caught.exception.file.endswith(".py") and caught.exception.line > 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
