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


class Sum(Two):
    def forward(self, x, y):
        h = self.a(x)
        return F.mse_loss(self.b(h), y) + F.mse_loss(h, x)  # here


class NoLoss(Two):
    def forward(self, x, y):
        return self.b(x)  # here


class Thrice(Two):
    def forward(self, x, y):
        h = self.a(x)
        h = self.a(h)  # here
        return F.mse_loss(self.b(self.a(h)), y)


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
    def forward(self, x, y):
        h = self.norm(self.a(x))  # here
        return F.mse_loss(self.b(h), y)


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


class Detached(Two):
    def forward(self, x, y):
        h = self.a(x).detach()  # here
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


class Softmax(Two):
    def forward(self, x, y):
        h = self.a(x).softmax(-1)  # here
        return F.mse_loss(self.b(h), y)


class Broadcast(Two):
    def forward(self, x, y):
        h = self.a(x)
        h = h * self.b.weight[:1]  # here
        return F.mse_loss(self.b(h), y)


class NoShift(Two):
    def forward(self, x, y):
        h = F.layer_norm(self.a(x), (8,), self.norm.weight)  # here
        return F.mse_loss(self.b(h), y)


class Smoothed(Two):
    def forward(self, x, y):
        h = self.b(self.a(x))
        return F.cross_entropy(h, y.argmax(-1), label_smoothing=0.1)  # here


class Attention(nn.Module):
    """One layer of attention over 2 heads of 8; `change` is applied to q, `options` to the attention."""

    def __init__(self, change=lambda q: q, **options):
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(16, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.change, self.options = change, {"is_causal": True, **options}

    def forward(self, ids, targets):
        q, k, v = self.qkv(self.table(ids)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self.change(q), k, v, **self.options)  # here
        return F.cross_entropy(self.out(y.transpose(1, 2).flatten(2)).flatten(0, 1), targets.flatten())
