"""The same functions written in other ways, under other names: what prun.export must recognise by structure."""
import math

import torch
import torch.nn.functional as F
from torch import nn

# Functions of one number by their parts, and the Lua that they become.
ACTIVATIONS = {
    "gelu": (F.gelu, 'nn.gelu({}, "none")'),
    "gelu by erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), 'nn.gelu({}, "none")'),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), 'nn.gelu({}, "tanh")'),
    "gelu by tanh, by parts": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3)))),
        'nn.gelu({}, "tanh")'),
    "gelu by tanh, in another order": (
        lambda x: (torch.tanh((x * x * x * 0.044715 + x) * (2 / math.pi) ** 0.5) + 1.0) * (x / 2), 'nn.gelu({}, "tanh")'),
    "relu": (F.relu, "nn.relu({})"),
    "relu in place": (lambda x: F.relu(x * 1.0, inplace=True), "nn.relu({})"),
    "relu by clamp": (lambda x: x.clamp(min=0), "nn.relu({})"),
    "tanh": (torch.tanh, "nn.tanh({})"),
    "tanh by sigmoid": (lambda x: 2 * torch.sigmoid(2 * x) - 1, "nn.tanh({})"),
}
GATES = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "the other way round": lambda gate, up: up * F.silu(gate),
    "by sigmoid": lambda gate, up: gate * torch.sigmoid(gate) * up,
    "by exp": lambda gate, up: up * (gate / (1 + torch.exp(-gate))),
}


class RMS(nn.Module):
    """An RMSNorm by parts; `form` chooses one of several ways to write it."""

    def __init__(self, size, form):
        super().__init__()
        self.g, self.form = nn.Parameter(torch.ones(size)), form

    def forward(self, x):
        if self.form == "mean":
            return self.g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        if self.form == "square":
            return x * self.g / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)
        if self.form == "sum":
            return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6) ** 0.5 * self.g
        return F.rms_norm(x, x.shape[-1:], self.g, 1e-6)


class Norm(nn.Module):
    """A layernorm by parts."""

    def __init__(self, size, form):
        super().__init__()
        self.g, self.c, self.form = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size)), form

    def forward(self, x):
        m = x.mean(-1, keepdim=True)
        if self.form == "variance":
            return self.g * (x - m) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-3) + self.c
        return self.c + (x - m) * torch.rsqrt(((x - m) ** 2).mean(-1, keepdim=True) + 1e-3) * self.g


def written(h):
    """Writes parts of [batch, 2, 8] in place, some of them twice."""
    y, z = h.new_empty(h.shape), torch.zeros_like(h)
    y[:, 0] = h[:, 1]
    y[:, 1] = h[:, 0] * 2
    z[:, :, 1:6] = y[:, :, 3:]
    z[:, :, 4:7] = h[:, :1, 5:]
    return y + z


class Mlp(nn.Module):
    """A layer, a function, and a layer, trained on rows of numbers."""

    def __init__(self, function, norm=None):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(8, 16), nn.Linear(16, 4), function
        self.norm = norm or nn.Identity()

    def forward(self, x, y):
        return F.mse_loss(self.second(self.function(self.norm(self.first(x)))), y)


def scaled(speeds, scaling):
    """Returns radians per token of pairs, scaled linearly by 4 or as Llama 3.1 does, by 8 from 16 tokens on."""
    if scaling == "llama3":
        kept = ((16 * speeds / (2 * math.pi) - 1) / 3).clamp(0, 1)
        return speeds * (kept + (1 - kept) / 8)
    return speeds / 4 if scaling == "linear" else speeds


def rotated(x, interleaved, base=500.0, scaling=""):
    """Rotates [batch, heads, tokens, size] by its position, in one of the two layouts of pairs."""
    size = x.shape[-1]
    speeds = scaled(base ** (-torch.arange(0, size, 2).to(x.dtype) / size), scaling)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), speeds)
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Mixer(nn.Module):
    """Causal attention; `form` chooses how heads are laid out and how scores are computed."""

    def __init__(self, width, heads, form):
        super().__init__()
        self.n, self.form, self.size = heads, form, width // heads
        self.shared = 2 if form == "shared" else heads
        self.into = nn.Linear(width, width + 2 * self.shared * self.size)
        self.back = nn.Linear(width, width)

    def forward(self, h):
        b, t, c = h.shape
        n, m, s = self.n, self.shared, self.size
        if self.form == "interleaved heads":  # q, k and v of a head are neighbours
            q, k, v = self.into(h).view(b, t, n, 3, s).permute(3, 0, 2, 1, 4)
        elif self.form == "slices":
            y = self.into(h)
            q, k, v = (y[:, :, i * c:(i + 1) * c].view(b, t, n, s).transpose(1, 2) for i in (2, 0, 1))
        else:
            q, k, v = self.into(h).split((c, m * s, m * s), -1)
            q, k, v = q.view(b, t, n, s).transpose(1, 2), k.view(b, t, m, s).transpose(1, 2), v.view(
                b, t, m, s).transpose(1, 2)
        if self.form in ("rotary", "interleaved pairs", "shared", "linear scaling", "llama3 scaling"):
            q, k = (rotated(x, self.form == "interleaved pairs", scaling=self.form.split()[0]) for x in (q, k))
        if self.form in ("part of a head", "interleaved part"):
            q, k = (torch.cat((rotated(x[..., :s // 2], self.form != "part of a head"), x[..., s // 2:]), -1)
                    for x in (q, k))
        if self.form == "last part of a head":
            q, k = (torch.cat((x[..., :s // 2], rotated(x[..., s // 2:], True)), -1) for x in (q, k))
        if self.form == "shared":
            k, v = k.repeat_interleave(n // m, 1), v.repeat_interleave(n // m, 1)
        if self.form == "by parts":
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(s)
            scores = scores.masked_fill(torch.ones(t, t).tril()[None, None] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        elif self.form == "heads in the batch":
            q, k, v = (x.reshape(b * n, t, s) for x in (q, k, v))
            scores = torch.bmm(q, k.permute(0, 2, 1)) * s ** -0.5 + torch.full((t, t), float("-inf")).triu(1)
            y = torch.bmm(scores.softmax(-1), v).view(b, n, t, s)
        elif self.form == "other scale":
            y = F.scaled_dot_product_attention(q, k, v * 3, is_causal=True, scale=0.2)
        elif self.form == "scaled q":
            y = F.scaled_dot_product_attention(q * s ** -0.5, k, v, is_causal=True, scale=1.0)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.back(y.transpose(1, 2).reshape(b, t, c))


class Head(nn.Module):
    """One head of causal attention, with layers of its own."""

    def __init__(self, width, size):
        super().__init__()
        self.asks, self.has, self.gives = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.register_buffer("past", torch.ones(64, 64).tril())

    def forward(self, h):
        t = h.shape[1]
        scores = self.asks(h) @ self.has(h).transpose(-2, -1) * self.asks.out_features ** -0.5
        scores = scores.masked_fill(self.past[:t, :t] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ self.gives(h)


class SeparateHeads(nn.Module):
    """Heads that are modules, put side by side."""

    def __init__(self, width, heads):
        super().__init__()
        self.all = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.back = nn.Linear(width, width)

    def forward(self, h):
        return self.back(torch.cat([head(h) for head in self.all], dim=-1))


class OfTorch(nn.Module):
    """PyTorch's attention; `weights`: it also returns its weights, so that it computes by parts."""

    def __init__(self, width, heads, weights):
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(width, heads, batch_first=True), weights

    def forward(self, h):
        mask = nn.Transformer.generate_square_subsequent_mask(h.shape[1], dtype=h.dtype)
        return self.inner(h, h, h, need_weights=self.weights, attn_mask=mask)[0]


class Parameters(nn.Module):
    """Attention of weights without nn.Linear: x @ w + b."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w, self.b = nn.Parameter(torch.randn(width, 3 * width)), nn.Parameter(torch.zeros(3 * width))
        self.w2, self.b2 = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.zeros(width))

    def forward(self, h):
        q, k, v = (self.b + h @ self.w).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2) @ self.w2 + self.b2


def mixer_of(form, width, heads):
    """Returns the attention of a form."""
    if form == "separate heads":
        return SeparateHeads(width, heads)
    if form in ("nn.MultiheadAttention", "its weights"):
        return OfTorch(width, heads, form == "its weights")
    return Parameters(width, heads) if form == "x @ w + b" else Mixer(width, heads, form)


MIXERS = ["plain", "interleaved heads", "slices", "rotary", "interleaved pairs", "shared", "linear scaling",
          "llama3 scaling", "part of a head", "interleaved part", "by parts", "heads in the batch", "scaled q",
          "other scale", "separate heads", "nn.MultiheadAttention", "its weights", "x @ w + b"]


class Language(nn.Module):
    """A language model with names of its own; the loss is that of given or of shifted targets.

    `form`: that of all mixers, or a list with one for each layer.
    """

    def __init__(self, form, positions="module", shifted=False, tied=False, vocab=32, width=16, layers=3, tokens=8):
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.places = nn.Embedding(tokens, width) if positions == "module" else nn.Parameter(
            torch.randn(1, tokens, width)) if positions == "3d" else nn.Parameter(torch.randn(tokens, width))
        self.floors = nn.ModuleList(nn.ModuleDict({
            "before": nn.LayerNorm(width), "mixer": mixer_of(one, width, 4), "after": nn.LayerNorm(width),
            "widen": nn.Linear(width, 32), "narrow": nn.Linear(32, width)})
            for one in ([form] * layers if isinstance(form, str) else form))
        self.top, self.out = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.positions, self.shifted = positions, shifted
        if tied:
            self.out.weight = self.words.weight

    def forward(self, ids, targets):
        t = ids.shape[1]
        places = self.places(torch.arange(t)) if self.positions == "module" else self.places[:t] if (
            self.positions == "2d") else self.places[:, :t]
        h = places + self.words(ids)
        for floor in self.floors:
            h = floor.mixer(floor.before(h)) + h
            h = h + floor.narrow(F.gelu(floor.widen(floor.after(h))))
        scores = self.out(self.top(h))
        if self.shifted:
            return {"loss": F.cross_entropy(scores[:, :-1].reshape(-1, scores.shape[-1]), targets[:, 1:].reshape(-1))}
        return {"loss": F.cross_entropy(scores.transpose(1, 2), targets) if self.positions == "2d" else
                F.cross_entropy(scores.flatten(0, 1), targets.flatten())}
