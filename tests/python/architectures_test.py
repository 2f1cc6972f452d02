#!/usr/bin/env python3
"""The plans of plans/architectures against the same models of PyTorch's functions: ten steps in f64 on one and two ranks,
from the same weights. Usage: architectures_test.py PRUN VENV. VENV: see export_families_test.py.
"""
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
from torch.nn import functional  # noqa: E402

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]
import reference  # noqa: E402
from prun.export import weights  # noqa: E402

PRUN, STEPS = sys.argv[1], 10
PLANS = HERE.parents[1] / "plans/architectures"
WIDTH, HEADS, LAYERS, VOCAB = 32, 4, 2, 48


class Model:
    """Creates a parameter at the first layer that needs it. Layers have the names of the plan."""
    def __init__(self):
        self.tensors, self.unit = {}, ""

    def parameter(self, name, *shape, around=0.0):
        name = f"{self.unit}.{name}"
        if name not in self.tensors:
            self.tensors[name] = (around + 0.2 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
        return self.tensors[name]

    def linear(self, name, x, out, bias=True):
        y = x @ self.parameter(f"{name}.weight", x.shape[-1], out)
        return y + self.parameter(f"{name}.bias", out) if bias else y

    def layernorm(self, name, x):
        weight = self.parameter(f"{name}.weight", x.shape[-1], around=1.0)
        return functional.layer_norm(x, x.shape[-1:], weight, self.parameter(f"{name}.bias", x.shape[-1]), 1e-5)

    def rmsnorm(self, name, x):
        return functional.rms_norm(x, x.shape[-1:], self.parameter(f"{name}.weight", x.shape[-1], around=1.0), 1e-5)

    def embedding(self, ids, positions=True):
        x = functional.embedding(ids, self.parameter("words.weight", VOCAB, WIDTH))
        return x + self.parameter("positions.weight", ids.shape[1], WIDTH) if positions else x


def patches(x):
    return x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 4, 48)


def attention(q, k, v, mask=None, causal=False):
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    mask = None if mask is None else mask.bool()[:, None, None, :]
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal).transpose(1, 2).flatten(2)


def projected(m, name, x, other, **options):
    q, k, v = m.linear(f"{name}q", x, WIDTH), m.linear(f"{name}k", other, WIDTH), m.linear(f"{name}v", other, WIDTH)
    return m.linear(f"{name}proj", attention(q, k, v, **options), WIDTH)


def mixer(m, batch):
    m.unit = "embed"
    x = m.linear("patch", patches(batch["images"]), 16)

    def mlp(name, y, hidden, out):
        return m.linear(f"{name}2", functional.gelu(m.linear(f"{name}1", y, hidden)), out)

    for i in range(LAYERS):
        m.unit = f"block{i}"
        x = x + mlp("token", m.layernorm("ln1", x).transpose(1, 2), 12, 4).transpose(1, 2)
        x = x + mlp("channel", m.layernorm("ln2", x), 32, 16)
    m.unit = "head"
    return functional.mse_loss(m.linear("out", m.layernorm("ln", x).flatten(1), 5), batch["numbers"])


def vit(m, batch):
    m.unit = "embed"
    x = m.linear("patch", patches(batch["images"]), WIDTH)
    x = torch.cat([m.parameter("class", WIDTH).expand(len(x), 1, WIDTH), x], 1) + m.parameter("position", 5, WIDTH)
    for i in range(LAYERS):
        m.unit = f"block{i}"
        y = m.layernorm("ln1", x)
        x = x + projected(m, "", y, y)
        x = x + m.linear("down", functional.gelu(m.linear("up", m.layernorm("ln2", x), 4 * WIDTH)), WIDTH)
    m.unit = "head"
    return functional.cross_entropy(m.linear("logits", m.layernorm("ln", x[:, 0]), 5), batch["classes"])


def bert(m, batch):
    m.unit = "embed"
    x = m.layernorm("ln", m.embedding(batch["sentences"]))
    for i in range(LAYERS):
        m.unit = f"block{i}"
        x = m.layernorm("ln1", x + projected(m, "", x, x, mask=batch["mask"]))
        x = m.layernorm("ln2", x + m.linear("down", functional.gelu(m.linear("up", x, 4 * WIDTH)), WIDTH))
    m.unit = "head"
    y = m.layernorm("ln", functional.gelu(m.linear("dense", x, WIDTH)))
    logits = y @ m.tensors["embed.words.weight"].T + m.parameter("logits.bias", VOCAB)
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def encoder_decoder(m, batch):
    m.unit = "source"
    memory = m.embedding(batch["sentences"])
    m.unit = "target"
    x = m.embedding(batch["before"])

    def mlp(y):
        return y + m.linear("down", functional.relu(m.linear("up", m.layernorm("ln3", y), 2 * WIDTH)), WIDTH)

    for i in range(1, LAYERS + 1):
        m.unit = f"encoder{i}"
        y = m.layernorm("ln1", memory)
        memory = mlp(memory + projected(m, "self_", y, y, mask=batch["mask"]))
    for i in range(1, LAYERS + 1):
        m.unit = f"decoder{i}"
        y = m.layernorm("ln1", x)
        y = x + projected(m, "self_", y, y, causal=True)
        x = mlp(y + projected(m, "cross_", m.layernorm("ln2", y), memory, mask=batch["mask"]))
    m.unit = "head"
    logits = m.linear("logits", m.layernorm("ln", x), VOCAB)
    return functional.cross_entropy(logits.flatten(0, 1), batch["after"].flatten())


def rotated(x):
    """Rotates the pairs (i, i + size/2) of [B, heads, T, size]."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def deepseek_attention(m, batch):
    plain, turned, value, latent = 8, 4, 6, 16
    m.unit = "embed"
    x = m.embedding(batch["sentences"], positions=False)
    for i in range(LAYERS):
        m.unit = f"block{i}"
        y = m.rmsnorm("norm", x)
        q = m.linear("q", y, HEADS * (plain + turned)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        q = torch.cat([q[..., :plain], rotated(q[..., plain:])], -1)
        small = m.linear("down_kv", y, latent + turned)
        up = m.linear("up_kv", m.rmsnorm("latent_norm", small[..., :latent]), HEADS * (plain + value), bias=False)
        up = up.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        same = rotated(small[:, None, :, latent:]).expand(-1, HEADS, -1, -1)
        k = torch.cat([up[..., :plain], same], -1)
        y = functional.scaled_dot_product_attention(q, k, up[..., plain:], is_causal=True)
        x = x + m.linear("proj", y.transpose(1, 2).flatten(2), WIDTH)
    m.unit = "head"
    logits = m.linear("logits", m.rmsnorm("norm", x), VOCAB)
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def unet(m, batch):
    def twice(x, channels):
        for i in (1, 2):
            weight = m.parameter(f"conv{i}.weight", channels, x.shape[1], 3, 3)
            x = functional.relu(functional.conv2d(x, weight, m.parameter(f"conv{i}.bias", channels), padding=1))
        return x

    x, levels = batch["images"], []
    for i in (1, 2):
        m.unit = f"down{i}"
        levels.append(twice(x, 4 << i))
        x = functional.max_pool2d(levels[-1], 2)
    m.unit = "bottom"
    x = twice(x, 32)
    for i in (2, 1):
        m.unit = f"up{i}"
        weight = m.parameter("up.weight", x.shape[1], 4 << i, 2, 2)
        up = functional.conv_transpose2d(x, weight, m.parameter("up.bias", 4 << i), stride=2)
        x = twice(torch.cat([levels[i - 1], up], 1), 4 << i)
    m.unit = "head"
    logits = functional.conv2d(x, m.parameter("logits.weight", 5, 8, 1, 1), m.parameter("logits.bias", 5))
    return functional.cross_entropy(logits, batch["pixels"])


class Architectures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory(prefix="prun-architectures-")
        cls.addClassCleanup(place.cleanup)
        cls.folder = pathlib.Path(place.name)
        subprocess.run([sys.executable, PLANS / "data.py", cls.folder], check=True)
        cls.batches = {path.stem: torch.from_numpy(numpy.load(path)) for path in cls.folder.glob("*.npy")}
        cls.batches = {name: t.double() if t.is_floating_point() else t.long() for name, t in cls.batches.items()}
        for path in cls.folder.glob("*.npy"):  # one batch, eight times: the order of samples does not matter
            numpy.save(path, numpy.concatenate([numpy.load(path)[:8]] * 8))

    def compare(self, compute):
        plan = PLANS / f"{compute.__name__}.lua"
        text = plan.read_text()
        self.assertLessEqual(text.count("\n"), 40)
        torch.manual_seed(0)
        model, batch = Model(), {name: tensor[:8] for name, tensor in self.batches.items()}
        compute(model, batch)
        start = self.folder / compute.__name__
        start.mkdir()
        weights.write({name: t.detach().clone() for name, t in model.tensors.items()}, start / "model.safetensors")
        mine = self.folder / plan.name
        mine.write_text(text.replace("  mesh ", f'  init = prun.init.from {{ path = "{start}" }},\n  mesh ', 1).replace(
            "batch = arg.batch", 'batch = arg.batch, order = "given"'))
        rate = 0.05 if compute is mixer else 0.1
        optimizer, losses = torch.optim.SGD(model.tensors.values(), lr=rate), []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = compute(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                ours, tensors = reference.run(PRUN, mine, self.folder / f"{compute.__name__}{ranks}", ranks,
                                              [f"folder={self.folder}", "dtype=f64"], ["--device", "reference"])
                self.assertEqual(len(ours), STEPS)
                self.assertLess(max(abs(a - b) / b for a, b in zip(ours, losses)), 1e-12)
                for name, tensor in model.tensors.items():
                    self.assertLess((tensors[name] - tensor).abs().max().item(), 1e-12, name)


for function in (mixer, vit, bert, encoder_decoder, deepseek_attention, unet):
    setattr(Architectures, f"test_{function.__name__}", lambda self, compute=function: self.compare(compute))

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
