#!/usr/bin/env python3
"""Each rule of prun.export: the Lua that it makes, and one training step in f64 against PyTorch.

Usage: export_rules_test.py PRUN VENV. VENV: see export_families_test.py.
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
import variants  # noqa: E402
from prun.export import ExportError, export  # noqa: E402

PRUN = sys.argv[1]
RATE = 0.01
NAMES = ["end", "while", "my-layer", "my_layer", "2nd", "größe", "nn", "batch", "arg", "prun", "x", "a b", 'a"b', "-"]


class Rules(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="prun-export-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        torch.manual_seed(0)

    def same(self, module, batch, *lua):
        """Checks the plan's text, and that two steps of SGD give PyTorch's losses and weights."""
        module = module.double()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
        trained = copy.deepcopy(module)
        exported = export(module, batch)
        exported.save(self.folder / "plan")
        for text in lua:
            self.assertIn(text, exported.plan)
        self.write(batch, exported.context)
        plan = self.folder / "plan.lua"
        plan.write_text(plan.read_text().replace(
            "prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }", f"prun.sgd {{ lr = {RATE} }}"))
        losses, optimizer = [], torch.optim.SGD(trained.parameters(), lr=RATE)
        for _ in range(2):
            result = trained(*batch)
            loss = result["loss"] if isinstance(result, dict) else result
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        settings = [f"file={self.folder}/x", f"batch={len(batch[0])}", "steps=2"]
        settings += [] if exported.context else [f"targets={self.folder}/y.npy"]
        ours, tensors = reference.run(PRUN, plan, self.folder / "out", 1, settings, ["--device", "reference"])
        self.assertLess(max(abs(a - b) / b for a, b in zip(ours, losses)), 1e-12)
        exported.load_tensors(tensors)
        for (name, a), b in zip(module.named_parameters(), trained.parameters()):
            self.assertLess((a - b).abs().max().item(), 1e-12, name)
        return exported

    def write(self, batch, context):
        if context:
            samples = [row[:context + 1] for row in batch[0]]
            self.assertTrue(all(torch.equal(a[context], b[0]) if len(a) > context else True
                                for a, b in zip(samples, samples[1:])))
            text = torch.cat([row[:context] for row in batch[0]] + [batch[-1][-1, -1:]])
            text.numpy().astype("<u2").tofile(self.folder / "x")
            return
        numpy.save(self.folder / "x.npy", batch[0].numpy())
        (self.folder / "x.npy").rename(self.folder / "x")
        numpy.save(self.folder / "y.npy", batch[1].numpy().astype("<i4") if batch[1].dtype == torch.int64
                   else batch[1].numpy())

    def rows(self):
        return torch.randn(6, 8, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)

    def text(self, count=3, tokens=8):
        ids = torch.randint(0, 32, (count * tokens + 1,))
        windows = torch.stack([ids[i * tokens:(i + 1) * tokens + 1] for i in range(count)])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), windows

    def test_functions_of_one_number(self):
        for name, (function, lua) in variants.ACTIVATIONS.items():
            with self.subTest(name):
                self.same(variants.Mlp(function), self.rows(), lua.format('nn.linear("up", batch.x, 16)'))

    def test_gates(self):
        for name, gate in variants.GATES.items():
            class Gated(nn.Module):
                def __init__(self, gate=gate):
                    super().__init__()
                    self.both, self.last, self.gate = nn.Linear(8, 32), nn.Linear(16, 4), gate

                def forward(self, x, y):
                    return nn.functional.mse_loss(self.last(self.gate(*self.both(x).chunk(2, -1))), y)

            with self.subTest(name):
                self.same(Gated(), self.rows(), 'nn.silu_mul(nn.linear("gate", batch.x, 16), nn.linear("up", batch.x, 16))',
                          'nn.linear("down", ')

    def test_norms(self):
        for form in ("mean", "square", "sum", "op"):
            with self.subTest("rmsnorm", form=form):
                self.same(variants.Mlp(torch.tanh, variants.RMS(16, form)), self.rows(), 'nn.rmsnorm("norm", ', ", 1e-06)")
        for form in ("variance", "square"):
            with self.subTest("layernorm", form=form):
                self.same(variants.Mlp(torch.tanh, variants.Norm(16, form)), self.rows(), 'nn.layernorm("norm", ', "0.001)")

    def test_sums_and_factors(self):
        for name, function, lua in [("factor", lambda x: x * 3, " * 3"), ("division", lambda x: x / 4, " * 0.25"),
                                    ("minus", lambda x: -x, " * -1"), ("sum", lambda x: x + torch.tanh(x), " + "),
                                    ("difference", lambda x: torch.tanh(x) - x, " * -1"),
                                    ("product", lambda x: x * torch.tanh(x), " * nn.tanh("),
                                    ("square", lambda x: torch.relu(x) ** 2, "active * active"),
                                    ("square", torch.square, "nn.linear("),
                                    ("a sum in a product", lambda x: (x + torch.tanh(x)) * 2, " * 2")]:
            with self.subTest(name):
                self.same(variants.Mlp(function), self.rows(), lua)

    def test_views(self):
        """Views of activations [6, 2, 8]; the function's result has 16 numbers a sample."""
        class Views(nn.Module):
            def __init__(self, function, added=False):
                super().__init__()
                self.up, self.last, self.function = nn.Linear(8, 16), nn.Linear(16, 4), function
                self.added = nn.Parameter(torch.zeros(1, 1, 8)) if added else None

            def forward(self, x, y):
                h = torch.tanh(self.up(x)).view(-1, 2, 8)
                h = self.function(h) if self.added is None else self.function(h, self.added)
                return nn.functional.mse_loss(self.last(h.reshape(len(x), 16)), y)

        for name, function, lua in [
                ("transpose", lambda h: h.transpose(1, 2), ":transpose(1, 2)"),
                ("mT", lambda h: h.mT * 2, ":transpose(1, 2)"),
                ("permute", lambda h: h.unflatten(-1, (4, 2)).permute(0, 3, 1, 2), ":permute { 0, 3, 1, 2 }"),
                ("slices", lambda h: torch.cat([h[:, :, 4:], h[:, :, :4]], -1), ":slice(2, 4), "),
                ("negative", lambda h: torch.cat([h[..., -3:], h[..., :-3]], 2), ":slice(2, 5)"),
                ("select", lambda h: torch.stack([h[:, 1], h[:, 0]], 1), "nn.stack({"),
                ("chunk", lambda h: torch.cat(h.chunk(2, -1), 1), ":slice(2, 0, 4)"),
                ("split", lambda h: torch.cat(h.split([3, 5], -1)[::-1], -1), ":slice(2, 3)"),
                ("unbind", lambda h: h.unbind(1)[1][:, None].expand(-1, 2, -1), ":expand { -1, 2, -1 }"),
                ("repeat", lambda h: h[:, :, :4].repeat(1, 1, 2), ":expand { -1, 1, 2, 2, 4 }"),
                ("repeat_interleave", lambda h: h[:, :1].repeat_interleave(2, 1), ":expand { -1, 1, 2, 8 }"),
                ("pad", lambda h: F.pad(h[:, :, 2:], (1, 1), value=0.5), ":pad(2, 1, 1, 0.5)"),
                ("every second", lambda h: torch.cat([h[..., 1::2], h[..., 0::2]], -1), ":unflatten(2, { 4, 2 })"),
                ("every third", lambda h: torch.cat([h[..., 1::3], h[..., ::3], h[..., 2::3]], -1), ":pad(2, 0, 1)"),
                ("written", variants.written, "nn.concat({"),
                ("joined numbers", lambda h: torch.cat([torch.ones(len(h), 2, 4), h[..., :4]], -1), "nn.concat({"),
                ("windows", lambda h: h.mT.unfold(1, 4, 4), ":unflatten(1, { 2, 4 })"),
                ("windows that overlap", lambda h: h.mT.unfold(1, 4, 3), ":slice(1, 3, 7)"),
                ("squeeze", lambda h: h[:, :, None].squeeze(2).flatten(1), "reshape { -1, 16 }")]:
            with self.subTest(name):
                self.same(Views(function), self.rows(), lua)
        with self.subTest("a parameter once a sample"):
            self.same(Views(lambda h, one: torch.cat([one.expand(len(h), -1, -1), h[:, 1:]], 1), True), self.rows(),
                      ":expand { batch.x.shape[1], -1, -1 }")

    def test_patches(self):
        """Convolutions over patches become linear layers; columns beyond the last whole patch are not read."""
        class Patches(nn.Module):
            def __init__(self, layer, size, rows=False):
                super().__init__()
                self.layer, self.last, self.rows = layer, nn.Linear(size, 3), rows

            def forward(self, x, y):
                h = self.layer(x)
                h = h.flatten(2).transpose(1, 2) if self.rows else h
                return F.cross_entropy(self.last(torch.tanh(h).flatten(1)), y)

        classes = torch.tensor([0, 2, 1, 2])
        for name, layer, shape, size, rows, lua in [
                ("images", nn.Conv2d(3, 5, 2, 2), (3, 4, 6), 30, True,
                 "batch.x:reshape { -1, 3, 2, 2, 3, 2 }:permute { 0, 2, 4, 1, 3, 5 }:reshape { -1, 6, 12 }"),
                ("oblong", nn.Conv2d(3, 5, (2, 3), (2, 3), bias=False), (3, 5, 7), 20, False, ":slice(3, 0, 6)"),
                ("sounds", nn.Conv1d(2, 5, 4, 4), (2, 8), 10, False, "batch.x:reshape { -1, 2, 2, 4 }"),
                ("videos", nn.Conv3d(1, 4, 2, 2), (1, 2, 4, 2), 8, False, "permute { 0, 2, 4, 6, 1, 3, 5, 7 }")]:
            with self.subTest(name):
                batch = torch.randn(4, *shape, dtype=torch.float64), classes
                plan = self.same(Patches(layer, size, rows), batch, lua).plan
                self.assertEqual("transpose" in plan, not rows)

    def test_convolutions(self):
        """Convolutions, pools and resizing of images and sequences, against PyTorch's."""
        class Images(nn.Module):
            def __init__(self, layer, size, after):
                super().__init__()
                self.layer, self.last, self.after = layer, nn.Linear(size, 3), after

            def forward(self, x, y):
                return F.cross_entropy(self.last(torch.tanh(self.after(self.layer(x))).flatten(1)), y)

        classes = torch.tensor([0, 2, 1, 2])
        three, norm = nn.Conv2d(4, 6, 3, padding=1), nn.utils.parametrizations.weight_norm
        for name, layer, size, lua, after in [
                ("stride", nn.Conv2d(4, 6, 3, 2, 1), 54, "nn.conv2d(\"layer\", batch.x, 6, 3, { stride = 2, padding = 1 })", None),
                ("groups", nn.Conv2d(4, 6, (1, 3), dilation=(1, 2), groups=2, bias=False), 36,
                 "6, { 1, 3 }, { dilation = { 1, 2 }, groups = 2, bias = false })", None),
                ("depthwise", nn.Conv2d(4, 4, 3, padding="same", groups=4), 120, "padding = 1, groups = 4 })", None),
                ("transposed", nn.ConvTranspose2d(4, 2, 3, 2, 1, output_padding=1), 240, "nn.conv_transpose2d(", None),
                ("transposed groups", nn.ConvTranspose2d(4, 2, 2, 2, groups=2, bias=False), 240, "groups = 2", None),
                ("sounds", nn.Conv1d(4, 6, 4, 2, 1), 30, "nn.conv1d(", None),
                ("sounds, transposed", nn.ConvTranspose1d(4, 2, 3, 2), 42, "nn.conv_transpose1d(", None),
                ("weight norm", norm(nn.Conv1d(4, 6, 3, groups=2), dim=2), 48, "weight = ", None),
                ("maxima", three, 24, "nn.maxpool2d(", lambda x: F.max_pool2d(x, 2, ceil_mode=False)[:, :, :2]),
                ("maxima, padded", three, 54, "3, { stride = 2, padding = 1 })", lambda x: F.max_pool2d(x, 3, 2, 1)),
                ("means", three, 54, "{ stride = 2, padding = 1 }", lambda x: F.avg_pool2d(x, 3, 2, 1)),
                ("means inside", three, 54, "count_padding = false",
                 lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
                ("one mean", three, 6, "keep = true", lambda x: F.adaptive_avg_pool2d(x, 1)),
                ("few means", three, 90, "nn.avgpool2d(", lambda x: F.adaptive_avg_pool2d(x, (3, 5))),
                ("means of other sizes", three, 48, "nn.matmul(", lambda x: F.adaptive_avg_pool2d(x, (4, 2))),
                ("one mean, cut", three, 6, "keep = true", lambda x: F.avg_pool2d(x, 9, ceil_mode=True)),
                ("means, cut", three, 24, "nn.matmul(", lambda x: F.avg_pool2d(x, 4, 3, ceil_mode=True)),
                ("means inside, cut", three, 72, "nn.matmul(",
                 lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
                ("a gate of channels", three, 180, "nn.silu(", lambda x: F.silu(x) * x.mean((2, 3), keepdim=True)),
                ("one place", three, 180, "nn.matmul(",
                 lambda x: F.interpolate(x.mean((2, 3), keepdim=True), size=(6, 5), mode="bilinear")),
                ("nearest", three, 720, "nn.upsample(", lambda x: F.interpolate(x, scale_factor=2)),
                ("bilinear", three, 252, "nn.matmul(",
                 lambda x: F.interpolate(x, size=(7, 6), mode="bilinear", align_corners=False)),
                ("aligned", three, 252, "nn.matmul(",
                 lambda x: F.interpolate(x, size=(7, 6), mode="bilinear", align_corners=True)),
                ("nearest of other sizes", three, 252, "nn.matmul(", lambda x: F.interpolate(x, size=(7, 6)))]:
            with self.subTest(name):
                shape = (4, 10) if "1d" in type(layer).__name__.lower() or name == "weight norm" else (4, 6, 5)
                batch = torch.randn(4, *shape, dtype=torch.float64), classes
                self.same(Images(copy.deepcopy(layer), size, after or (lambda x: x)), batch, lua)

    def test_classes_of_places(self):
        """Logits [samples, classes, height, width] and a target for each place."""
        class Places(nn.Module):
            def __init__(self, loss):
                super().__init__()
                self.layer, self.loss = nn.Conv2d(2, 3, 3, padding=1), loss

            def forward(self, x, y):
                return self.loss(self.layer(x), y)

        targets = torch.randint(0, 3, (4, 5, 6))
        targets[0, 1:4] = 255
        for loss in (lambda z, y: F.cross_entropy(z, y, ignore_index=255),
                     lambda z, y: F.nll_loss(z.log_softmax(1), y, ignore_index=255)):
            self.same(Places(loss), (torch.randn(4, 2, 5, 6, dtype=torch.float64), targets),
                      ":permute { 0, 2, 3, 1 }", "batch.y, { ignore = 255 })")

    def test_rows_of_a_parameter(self):
        """nn.MultiheadAttention of one learned query, whose layers are rows of one weight."""
        class Pool(nn.Module):
            def __init__(self):
                super().__init__()
                self.query, self.up, self.last = nn.Parameter(torch.zeros(1, 1, 8)), nn.Linear(2, 8), nn.Linear(8, 4)
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

            def forward(self, x, y):
                h = self.up(x.view(-1, 4, 2))
                return F.mse_loss(self.last(self.attention(self.query.repeat(len(h), 1, 1), h, h)[0][:, 0]), y)

        self.same(Pool(), self.rows(), 'q = nn.linear("q", ', 'k = nn.linear("k", up_, 8), v = nn.linear("v", up_, 8)')

    def test_weights_of_another_form(self):
        """A weight on the left of a product, and one of a convolution that loses a dim and gets it back."""
        class Forms(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight, self.kernel = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(3, 1, 2))
                self.last = nn.Linear(3, 4)

            def forward(self, x, y):
                h = self.weight @ x.view(-1, 4, 2)
                return F.mse_loss(self.last(F.conv1d(h, self.kernel.squeeze(1)[:, None], groups=3).flatten(1)), y)

        self.same(Forms(), self.rows(), ", 3, { bias = false }):transpose(1, 2)", "groups = 3")

    def test_rows_in_another_order(self):
        """A linear layer of transposed parts of samples, whose rows are added in two shapes."""
        class Parts(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.inner, self.last = nn.Linear(8, 16), nn.Linear(4, 4), nn.Linear(16, 4)

            def forward(self, x, y):
                h = torch.tanh(self.up(x)).view(-1, 2, 2, 4).transpose(1, 2)
                h = h + self.inner(h.reshape(-1, 2, 4)).mul(2).tanh().view(-1, 2, 2, 4)
                return F.mse_loss(self.last(h.flatten(1)), y)

        self.same(Parts(), self.rows(), ":transpose(1, 2)")

    def test_dropout_in_place(self):
        module = variants.Mlp(lambda x: F.dropout(F.relu(x, inplace=True), 0.25, True, inplace=True))
        self.assertIn("nn.dropout(nn.relu(", export(module.train(), self.rows()).plan)

    def test_functions_of_elements(self):
        """Functions, broadcasting, reductions and products that no other rule recognises."""
        for name, function, lua in [
            ("silu", F.silu, "nn.silu("), ("sigmoid", torch.sigmoid, "nn.sigmoid("), ("exp", torch.exp, "nn.exp("),
            ("softplus", F.softplus, "nn.softplus("), ("elu", lambda x: F.elu(x, 0.7), ", 0.7)"),
            ("leaky relu", lambda x: F.leaky_relu(x, 0.2), "nn.leaky_relu("),
            ("quick gelu", lambda x: x * torch.sigmoid(1.702 * x), "nn.sigmoid("),
            ("roots", lambda x: (x * x + 1).sqrt() + torch.rsqrt(x * x + 2), "nn.rsqrt("),
            ("numbers", lambda x: 1 - x + 2 / (x ** 2 + 1), "- ("), ("cube", lambda x: (x * 0.2) ** 3, " ^ (3)"),
            ("clamp", lambda x: x.clamp(-0.5, 0.5), "nn.minimum(nn.maximum("),
            ("hardtanh", F.hardtanh, "nn.minimum(nn.maximum("), ("relu6", F.relu6, "nn.minimum(nn.maximum("),
            ("abs", lambda x: torch.log(x.abs() + 1), "nn.log("),
            ("a constant mask", lambda x: x.masked_fill(torch.arange(16) > 7, 0.5), "nn.where("),
            ("hidden", lambda x: torch.where(torch.arange(16) > 7, 0.1 * x, float("-inf")).exp(), "-math.huge"),
            ("where", lambda x: torch.where(x > 0.2, x, torch.sin(x)), "nn.where(nn.greater("),
            ("a column", lambda x: x - x.mean(-1, keepdim=True) ** 3, "nn.mean("),
            ("a sum", lambda x: x / x.abs().sum(-1, keepdim=True), "nn.sum("),
            ("a maximum", lambda x: torch.exp(x - x.amax(-1, keepdim=True)), "nn.max("),
            ("a norm", lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True), "nn.norm("),
            ("a norm of order 1", lambda x: x / torch.linalg.vector_norm(x, 1, dim=-1, keepdim=True), "order = 1"),
            ("a largest magnitude", lambda x: x / torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True),
             "order = math.huge"),
            ("softmax", lambda x: x.softmax(-1), "nn.softmax("),
            ("log_softmax", lambda x: x.log_softmax(-1) * 0.1, "nn.log_softmax("),
            ("cumsum", lambda x: x.cumsum(1), "nn.cumsum("),
            ("softmax of columns", lambda x: x.view(-1, 4, 4).softmax(1).flatten(1), "nn.softmax("),
            # Functions that PyTorch writes by their parts.
            ("mish", F.mish, "nn.softplus("), ("celu", F.celu, "nn.exp("), ("hardswish", F.hardswish, "nn.minimum("),
            ("glu", lambda x: F.glu(torch.cat([x.tanh(), x.sin()], 1)), "nn.sigmoid("), ("lerp", lambda x: torch.lerp(x, x * x, 0.3), " * "),
            ("prelu", lambda x: F.prelu(x, torch.tensor(0.3, dtype=x.dtype)), "nn.where("), ("softshrink", F.softshrink, "nn.where("),
            ("threshold", lambda x: F.threshold(x, 0.1, 2.0), "nn.where("), ("roll", lambda x: x.roll(3, 1), "nn.linear("),
            ("logsumexp", lambda x: x - x.logsumexp(1, keepdim=True), "nn.log("), ("log1p", lambda x: torch.log1p(x * x), "nn.log("),
            ("shuffled pixels", lambda x: F.pixel_shuffle(x.tanh().view(-1, 4, 2, 2), 2).flatten(1), "permute"),
            ("variance", lambda x: x / (x.var(1, keepdim=True) + 1), "nn.mean("),
            ("deviation", lambda x: x / x.view(-1, 4, 4).std((1, 2), unbiased=False).view(-1, 1), "nn.sqrt("),
            ("first of max", lambda x: x - x.max(1, keepdim=True).values, "nn.max("),
            ("cosine", lambda x: x * F.cosine_similarity(x.tanh()[:, :8], x.sin()[:, 8:], dim=1)[:, None], "nn.maximum("),
            ("movedim", lambda x: x.tanh().view(-1, 2, 8).movedim(1, -1).flatten(1), "transpose"),
            ("einsum", lambda x: 0.1 * torch.einsum("bij,bik->bjk", x.view(-1, 4, 4), x.view(-1, 4, 4)).flatten(1),
             'nn.einsum("bij,bik->bjk"'),
        ]:
            with self.subTest(name):
                self.same(variants.Mlp(function), self.rows(), lua)

        class Scaled(variants.Mlp):
            def __init__(self):
                super().__init__(None)
                self.gain, self.level = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(1))

            def forward(self, x, y):
                h = self.first(x) * self.gain + torch.exp(self.level)
                return F.mse_loss(self.second(h * torch.sigmoid(h)), y)

        self.same(Scaled(), self.rows(), "nn.parameter(")

        class OnePlus(Scaled):
            def forward(self, x, y):
                h = self.first(x)
                h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.gain)
                return F.mse_loss(self.second(h) * self.level, y)

        self.same(OnePlus(), self.rows(), "affine = false }) * (1 + nn.parameter(")

    def test_token_types(self):
        """A row of a table added to each token, and positions added after it."""
        class Typed(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.types, self.places = nn.Embedding(32, 16), nn.Embedding(2, 16), nn.Embedding(9, 16)
                self.out = nn.Linear(16, 32)

            def forward(self, ids, targets):
                h = self.tokens(ids) * 4 + self.types(torch.zeros(ids.shape, dtype=torch.long)) + self.places(torch.arange(ids.shape[1])[None])
                return F.cross_entropy(self.out(h).flatten(0, 1), targets.flatten())

        ids, targets, _ = self.text()
        self.same(Typed(), (ids, targets), "nn.parameter(", "{ 1, 16 }", "{ 8, 16 }")

    def test_names_that_are_no_identifiers(self):
        """Layers named like Lua's keywords, like the plan's own variables, or with other characters."""
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.all = nn.ModuleDict({name: nn.Linear(8, 8) for name in NAMES})
                self.norms = nn.ModuleDict({f"norm{i}": nn.LayerNorm(8) for i in range(len(NAMES))})
                self.last = nn.Linear(8, 4)

            def forward(self, x, y):
                for layer, norm in zip(self.all.values(), self.norms.values()):
                    h = layer(x)
                    x = norm(h + 2 * h)
                return nn.functional.mse_loss(self.last(x), y)

        exported = self.same(Named(), self.rows(), 'local y = nn.linear("end", batch.x, 8)', 'nn.linear("my_layer", ')
        self.assertEqual(len(exported.weights), 4 * len(NAMES) + 2)
        plan = export(variants.Mlp(torch.relu), self.rows(), name='a\nname with "quotes"').plan
        self.assertTrue(plan.startswith('-- a name with "quotes", exported from PyTorch'), plan)

    def test_classes(self):
        class Classes(variants.Mlp):
            def forward(self, x, y):
                return nn.functional.cross_entropy(self.second(torch.relu(self.first(x))), y)

        self.same(Classes(None), (self.rows()[0], torch.randint(0, 4, (6,))), "prun.losses.cross_entropy(", "batch.y")

    def test_losses(self):
        def classes(function):
            class Classes(variants.Mlp):
                def forward(self, x, y):
                    return function(self.second(self.first(x)), y)
            return Classes(None)

        x, y = self.rows()
        ids = torch.randint(0, 4, (6,))
        for name, function, target in [
            ("of log_softmax", lambda z, y: F.nll_loss(F.log_softmax(z, -1), y), ids),
            ("of log_softmax, twice", lambda z, y: F.cross_entropy(z.log_softmax(1), y), ids),
            ("mean of squares", lambda z, y: ((z - y) ** 2).mean(), y),
            ("mean of squares, the other way round", lambda z, y: (y - z).square().mean(), y),
        ]:
            with self.subTest(name):
                lua = "prun.losses.cross_entropy(" if target is ids else "prun.losses.mse("
                self.same(classes(function), (x, target), lua)

        some = (y > 0).double()
        for name, function, target in [
            ("l1", F.l1_loss, y), ("huber", lambda z, y: F.huber_loss(z, y, delta=0.5), y), ("smooth l1", F.smooth_l1_loss, y),
            ("bce", F.binary_cross_entropy_with_logits, some),
            ("bce, weighted", lambda z, y: F.binary_cross_entropy_with_logits(
                z, y, pos_weight=torch.tensor([2.0, 1.0, 0.5, 3.0])), some),
            ("of integers", lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], y.double()), (y[:, 0] > 0).long()),
            ("focal", lambda z, y: ((1 - torch.exp(-F.softplus(-z * y))) ** 2 * F.softplus(-z * y)).mean(), y.sign()),
            ("of one number", lambda z, y: F.mse_loss(z.sum(1), y), y[:, 0]),
            ("sums", lambda z, y: 0.5 * F.mse_loss(z, y) - F.l1_loss(z, y) / 4 + z.abs().mean() * 0.1, y),
            ("a sum of rows", lambda z, y: (z - y).abs().sum(-1).mean(), y),
            ("computed targets", lambda z, y: F.mse_loss(z, y * 2 + 1), y),
            ("cosine", lambda z, y: 1 - F.cosine_similarity(z, y, dim=-1).mean(), y),
        ]:
            with self.subTest(name):
                if name == "cosine":  # a number that is added to a loss changes no gradient
                    self.assertRaisesRegex(ExportError, "no such loss", export, classes(function).double(), (x, target))
                    continue
                self.same(classes(function), (x, target), "prun.losses.")

        masked = torch.tensor([1, -100, 3, 0, -100, 2])
        for options, targets, lua in [
            ({}, masked, "batch.y)"),
            ({"ignore_index": 0}, ids, "batch.y, { ignore = 0 })"),
            ({"label_smoothing": 0.1}, masked, "batch.y, { label_smoothing = 0.1 })"),
            ({"ignore_index": -1, "label_smoothing": 0.25}, masked.clamp(min=-1),
             "batch.y, { ignore = -1, label_smoothing = 0.25 })"),
        ]:
            with self.subTest(lua):
                self.same(classes(lambda z, y, options=options: F.cross_entropy(z, y, **options)), (x, targets), lua)

        class Column(variants.Mlp):
            def forward(self, x, y):
                return F.mse_loss(self.second(torch.relu(self.first(x))).squeeze(-1), y)

        module = Column(None)
        module.second = nn.Linear(16, 1)
        self.same(module, (x, y[:, 0].clone()), "prun.losses.mse(")

    def test_attention(self):
        for form in variants.MIXERS:
            with self.subTest(form):
                ids, targets, _ = self.text()
                lua = {"rotary": "base = 500 }", "interleaved pairs": "base = 500 }", "shared": "kv_heads = 2",
                       "part of a head": "part = 2 }", "interleaved part": "part = 2 }",
                       "linear scaling": 'base = 500, scaling = "linear", factor = 4 }',
                       "llama3 scaling": 'scaling = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4, '
                                         "original_context = 16 }"}.get(form, "")
                width = 32 if form == "llama3 scaling" else 16  # any two pairs look as if they were scaled linearly
                exported = self.same(variants.Language(form, width=width), (ids, targets), "nn.attention(", lua,
                                     'nn.linear("qkv", ',
                                     'nn.linear("proj", ', 'for i = 0, 2 do  -- floors.0', 'nn.unit("floors" .. i',
                                     'nn.layernorm("before"', 'nn.linear("up"', 'nn.linear("down"', 'nn.linear("logits"')
                self.assertLess(exported.plan.count("\n"), 60)

    def test_rotations_by_plain_ops(self):
        """Rotary positions that nn.rotary does not have; the targets are also shifted, so that ops count tokens."""
        ids, targets, windows = self.text()
        lua = "nn.attention { q = ", ":unflatten(", "context = 8,"
        self.same(variants.Language("last part of a head", layers=1), (ids, targets), *lua)
        self.same(variants.Language("last part of a head", layers=1, tokens=9, shifted=True), (windows, windows), *lua)

    def test_long_contexts(self):
        ids = torch.randint(0, 32, (1, 2048))  # angles of many radians, rounded to f32
        for form, lua in [("rotary", "base = 500 }"), ("interleaved pairs", "base = 500 }"),
                          ("llama3 scaling", "original_context = 16 }")]:
            module = variants.Language(form, layers=1, tokens=2048, width=32)
            self.assertIn(lua, export(module, (ids, ids.roll(-1, 1))).plan)

    def test_layers_of_two_kinds(self):
        ids, targets, _ = self.text()
        for forms, lua in [(["rotary", "plain"] * 3, "if i % 2 == 0 then"),
                           (["rotary", "rotary", "plain", "rotary"], "if i % 3 == 2 then")]:
            with self.subTest(lua):
                exported = self.same(variants.Language(forms), (ids, targets), f"for i = 0, {len(forms) - 1} do", lua)
                self.assertEqual(exported.plan.count("nn.attention("), 2)
        exported = self.same(variants.Language(["rotary", "rotary", "plain"]), (ids, targets), "for i = 0, 1 do",
                             'nn.unit("floors2"')
        self.assertNotIn(" % ", exported.plan)

    def test_positions(self):
        for positions in ("2d", "3d"):
            with self.subTest(positions):
                ids, targets, _ = self.text()
                self.same(variants.Language("plain", positions), (ids, targets), '"position.weight", { 8, 16 }')

    def test_tied_and_shifted(self):
        ids, targets, _ = self.text()
        self.same(variants.Language("plain", tied=True), (ids, targets), 'nn.again("embed"', "weight = nn.parameter")
        # Shifted targets are the tokens themselves: one batch of one sample, whose last token only is predicted.
        windows = torch.randint(0, 32, (1, 9))
        exported = export(variants.Language("plain", shifted=True, tokens=9), (windows, windows))
        self.assertEqual(exported.context, 8)

    def test_ids_and_targets_of_one_input(self):
        class One(variants.Language):
            def forward(self, ids):
                return super().forward(ids[:, :-1], ids[:, 1:])["loss"]

        windows = self.text()[2]
        self.same(One("rotary"), (windows,), "context = 8,", "batch.targets")

    def test_weights_come_back(self):
        ids, targets, _ = self.text()
        module = variants.Language("interleaved pairs", tied=True)
        before = copy.deepcopy(module.state_dict())
        exported = export(module, (ids, targets))
        tensors = {name: tensor.clone() for name, tensor in exported.tensors().items()}
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        exported.load_tensors(tensors)
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
