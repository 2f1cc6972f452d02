"""PyTorch's side of gpu_train.py and gpt2_cpu.py: GPT-2 as fast as PyTorch trains it without third-party kernels.

torch.compile, flash attention (scaled_dot_product_attention), fused AdamW, f32 weights with bf16 autocast (or f32
alone), data on the device beforehand, and no synchronization between steps: CUDA events measure them. Prints one JSON
object.
"""
import argparse
import array
import json
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.between = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, context, vocab):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("proj.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.last(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def optimizer_of(model, lr, fused):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.95), fused=fused)


class Clock:
    """Times between marks in seconds, by events on a GPU, otherwise by the clock."""

    def __init__(self, device):
        self.cuda, self.marks = device == "cuda", []

    def mark(self):
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def times(self):
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self.marks, self.marks[1:])]
        return [b - a for a, b in zip(self.marks, self.marks[1:])]


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 12), ("width", 768), ("heads", 12), ("context", 1024), ("vocab", 50304), ("batch", 64), ("micro", 1),
                          ("steps", 30), ("warmup", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--data", required=True)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=0, help="on a CPU; 0: PyTorch's own choice")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if args.device == "cuda" else "highest")  # on a CPU "high" may be bf16
    if args.threads:
        torch.set_num_threads(args.threads)
    ids = array.array("H")
    with open(args.data, "rb") as file:
        ids.frombytes(file.read())
    ids = torch.tensor(ids.tolist(), dtype=torch.long, device=args.device)
    model = Gpt2(args.layers, args.width, args.heads, args.context, args.vocab).to(args.device)
    optimizer = optimizer_of(model, args.lr, fused=True)
    forward = model if args.eager else torch.compile(model)
    rows = args.batch // args.micro
    clock, losses = Clock(args.device), []
    offsets = torch.arange(args.context, device=args.device)
    for _ in range(args.warmup + args.steps):
        clock.mark()
        total = torch.zeros((), device=args.device)
        for _ in range(args.micro):
            starts = torch.randint(len(ids) - args.context - 1, (rows, 1), device=args.device)
            tokens = ids[starts + offsets]
            targets = ids[starts + offsets + 1]
            with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = forward(tokens, targets) / args.micro
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    clock.mark()
    times = clock.times()[args.warmup:]
    print(json.dumps({"torch": torch.__version__, "step_s": statistics.median(times), "first_loss": losses[0].item(), "last_loss": losses[-1].item()}),
          flush=True)


if __name__ == "__main__":
    try:
        main()
    except torch.cuda.OutOfMemoryError as error:
        raise SystemExit(f"out of memory: {error}") from None
