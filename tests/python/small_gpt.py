"""A GPT as small training programs write it: fused q, k and v, learned positions, a tied head, the loss in forward."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal self-attention with one projection for q, k and v."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    """Attention and an MLP, each added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """Returns logits and the loss of the targets."""

    def __init__(self, vocab=256, layers=2, width=64, heads=4, context=32, tied=True, deviation=0.02):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, width), "wpe": nn.Embedding(context, width), "drop": nn.Dropout(0.0),
            "h": nn.ModuleList(Block(width, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(width),
        })
        self.lm_head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=deviation)

    def forward(self, ids, targets=None):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.transformer.drop(self.transformer.wte(ids) + self.transformer.wpe(positions))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
