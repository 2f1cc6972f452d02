"""Modules that prun.export rejects. A comment "# here" marks the line that the error names."""
import torch
import torch.nn.functional as F
from torch import nn


class Two(nn.Module):
    """Two layers and a few more; subclasses define forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.1)
        self.register_buffer("count", torch.zeros(()))


class Good(Two):
    def forward(self, x, y):
        return F.mse_loss(self.b(torch.relu(self.a(x))), y)


class Branch(Two):
    def forward(self, x, y):
        if x.sum() > 0:  # here
            x = self.a(x)
        return F.mse_loss(self.b(x), y)


class Item(Two):
    def forward(self, x, y):
        scale = x.sum().item()  # here
        return F.mse_loss(self.b(self.a(x) * scale), y)


class TwoLosses(Two):
    def forward(self, x, y):
        h = self.a(x)
        return F.mse_loss(self.b(h), y), F.mse_loss(h, x)  # here


class Summed(Two):
    def forward(self, x, y):
        return (self.b(self.a(x)) - y).abs().sum()  # here


class SummedLoss(Two):
    def forward(self, x, y):
        return F.mse_loss(self.b(self.a(x)), y, reduction="sum")  # here


class NoLoss(Two):
    def forward(self, x, y):
        return self.b(x)  # here


class Later(nn.Module):
    """Each token reads the mean of all of them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 8), nn.Linear(8, 8)

    def forward(self, ids, targets):
        h = self.embedding(ids)
        logits = self.head(h + h.mean(1, keepdim=True))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


class TiedThrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, False), nn.Linear(8, 8, False)
        self.head.weight = self.inner.weight = self.embedding.weight

    def forward(self, ids, targets):
        h = self.inner(self.embedding(ids))
        logits = self.head(h)  # here
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Statistics(Two):
    def __init__(self):
        super().__init__()
        self.kept = nn.InstanceNorm1d(4, track_running_stats=True)

    def forward(self, x, y):
        h = self.kept(self.a(x).view(-1, 4, 2))  # here
        return F.mse_loss(self.b(h.flatten(1)), y)


class Counter(Two):
    def forward(self, x, y):
        self.count.add_(1)  # here
        return F.mse_loss(self.b(self.a(x)), y)


class Modes(Two):
    def forward(self, x, y):
        h = self.a(x)
        if self.training:
            h = h * 2  # here
        return F.mse_loss(self.b(h), y)


class NoGrad(Two):
    def forward(self, x, y):
        with torch.no_grad():
            h = self.a(x)
        h = h * 2
        return F.mse_loss(self.b(h), y)


class Autocast(Two):
    def forward(self, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.a(x)
        return F.mse_loss(self.b(h.float()), y)


class Random(Two):
    def forward(self, x, y):
        h = self.a(x) + torch.randn_like(x)  # here
        return F.mse_loss(self.b(h), y)


class Broadcast(Two):
    def forward(self, x, y):
        h = self.a(x)
        h = h * self.b.weight[:1]
        return F.mse_loss(self.b(h), y)  # here


class Outer(Two):
    def forward(self, x, y):
        h = self.a(x)
        h = h[:, None] + h[None]  # here
        return F.mse_loss(self.b(h)[:, 0], y)


class Twins(Two):
    def forward(self, x, y):
        h = self.a(x)  # here
        h = h[:, :4] * torch.tanh(h[:, :4])
        return F.mse_loss(h, y)


class Broadcasts(Two):
    def forward(self, x, y):
        h = self.b(self.a(x))[:, :1]
        return F.mse_loss(h, y)  # here


class OtherLoss(Two):
    def forward(self, x, y):
        return torch.dot(self.b(self.a(x)).flatten(), y.flatten())  # here


class Soft(Two):
    def forward(self, x, y):
        return F.cross_entropy(self.b(self.a(x)), y)  # here


class Data(Two):
    def forward(self, x, y):
        return F.mse_loss(self.b(self.a(x).data), y)


class Straight(torch.autograd.Function):
    """Passes gradients on as if it did nothing."""

    @staticmethod
    def forward(ctx, x):
        return torch.relu(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class OwnDerivative(Two):
    def forward(self, x, y):
        return F.mse_loss(self.b(Straight.apply(self.a(x))), y)


class TensorHook(Two):
    def forward(self, x, y):
        h = self.a(x)
        h.register_hook(lambda gradient: gradient * 2)  # here
        return F.mse_loss(self.b(h), y)


class Experts(Two):
    def forward(self, x, y):
        weights, _ = self.b(x).softmax(-1).topk(2)  # here
        h = self.a(x) * weights.sum(-1, keepdim=True)
        return F.mse_loss(self.b(h), y)


class Picked(Two):
    def forward(self, x, y):
        h = torch.relu(self.a(x))
        h = h[1:]  # here
        return F.mse_loss(self.b(torch.cat([h, h[:1]])), y)


def turned(size, power=1.0):
    """Returns a function that rotates the first `size` elements of heads; unless power is 1, no base gives its angles."""
    def change(x):
        pairs = torch.arange(size // 2, dtype=x.dtype)
        speeds = 100 ** (-2 * pairs / size) * (1 + pairs * (power - 1))
        angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), speeds)
        a, b, rest = x[..., :size // 2], x[..., size // 2:size], x[..., size:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], -1)
    return change


class Attention(nn.Module):
    """One layer of attention over 2 heads of 8; `change` is applied to q and k, `options` to the attention."""

    def __init__(self, change=lambda q: q, **options):
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(16, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.change, self.options = change, {"is_causal": True, **options}

    def forward(self, ids, targets):
        q, k, v = self.qkv(self.table(ids)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self.change(q), self.change(k), v, **self.options)  # here
        return F.cross_entropy(self.out(y.transpose(1, 2).flatten(2)).flatten(0, 1), targets.flatten())


class ByParts(Attention):
    """The same attention by parts; `change` is applied to the scores."""

    def forward(self, ids, targets):
        q, k, v = self.qkv(self.table(ids)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = self.change(q @ k.transpose(-2, -1) * 8 ** -0.5)
        y = scores.softmax(self.options.get("dim", -1)) @ v
        return F.cross_entropy(self.out(y.transpose(1, 2).flatten(2)).flatten(0, 1), targets.flatten())


class NoProjection(Attention):
    """Attention whose values are the normed input itself."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 32)

    def forward(self, ids, targets):
        h = F.rms_norm(self.table(ids), (16,))
        q, k = self.qkv(h).unflatten(-1, (2, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, h.unflatten(-1, (2, 8)).transpose(1, 2), is_causal=True)
        return F.cross_entropy(self.out(y.transpose(1, 2).flatten(2)).flatten(0, 1), targets.flatten())


class Tokens(nn.Module):
    """An embedding, what `change` makes of it, and the loss of each token, or with `shift` of the next one."""

    def __init__(self, change, shift=False):
        super().__init__()
        self.table, self.places, self.out = nn.Embedding(8, 16), nn.Embedding(6, 16), nn.Linear(16, 8)
        self.change, self.shift = change, shift

    def forward(self, ids, targets):
        logits = self.out(self.change(self, self.table(ids)))
        if self.shift:
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
