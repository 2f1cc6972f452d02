"""One rank of PyTorch's training step on CPUs, the peer of plans/ddp.lua, zero3.lua, megatron.lua, 1f1b.lua, mlp.lua
and ddp_example.lua.

train_step.py starts it once per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Rank 0 prints one JSON
object with the median step time in milliseconds. The model uses PyTorch's fused ops where they exist
(scaled_dot_product_attention), so that the peer is as fast as possible.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch_parallel


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.size = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, context, _ = x.shape
        # Heads are consecutive, each with its q, k and v, so that a rank with a range of rows has whole heads.
        q, k, v = self.qkv(x).view(batch, context, -1, 3, self.size).permute(3, 0, 2, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.full((context, context), float("-inf")).triu(1)
            y = torch.softmax(q @ k.transpose(-1, -2) / self.size ** 0.5 + mask, -1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, context, -1))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers=4, width=256, heads=4, context=128, vocab=256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def embed(self, tokens):
        return self.tokens(tokens) + self.positions

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Mlp(nn.Module):
    def __init__(self, width=4000, layers=3, bias=True, activation=F.relu, activate_last=False):
        super().__init__()
        self.activation, self.activated = activation, layers if activate_last else layers - 1
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(layers))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = self.activation(layer(x)) if i < self.activated else layer(x)
        return x


def shard(model, blocks):
    """Applies FSDP over all ranks, one unit per block, as zero3 does."""
    from torch.distributed.fsdp import fully_shard
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt", "mlp", "ddp_example"])
    parser.add_argument("mode", choices=["ddp", "fsdp", "tp", "sequence", "1f1b", "single"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0, help="per rank")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--micro", type=int, default=8, help="microbatches of a pipeline")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.mode != "single":
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    # Ranks that share a model's tensors or layers read the same samples.
    generator = torch.Generator().manual_seed(rank if args.mode in ("ddp", "fsdp") else 0)
    if args.model == "gpt":
        batch = args.batch or 8
        model = Gpt()
        x = torch.randint(256, (batch, 128), generator=generator)
        y = torch.randint(256, (batch, 128), generator=generator)
        loss_of = lambda out, y: F.cross_entropy(out.view(-1, 256), y.view(-1))
        optimizer_of = lambda p: torch.optim.AdamW(p, lr=1e-3)
        blocks = list(model.blocks)
    else:
        example = args.model == "ddp_example"
        batch, width = args.batch or (1000 if example else 512), 4000 if example else 1024
        gelu = lambda x: F.gelu(x, approximate="tanh")
        model = Mlp() if example else Mlp(width, 8, bias=False, activation=gelu, activate_last=True)
        x, y = (torch.randn(batch, width, generator=generator) for _ in range(2))
        loss_of = lambda out, y: F.mse_loss(out, y)
        optimizer_of = lambda p: torch.optim.SGD(p, lr=1e-3) if example else torch.optim.AdamW(p, lr=1e-3)
        blocks = list(model.layers)
    if args.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=25)
    elif args.mode == "fsdp":
        model = shard(model, blocks)
    elif args.mode in ("tp", "sequence"):
        model = torch_parallel.tensors(model, args.mode == "sequence")
    elif args.mode == "1f1b":
        model = torch_parallel.Stage(model, x, y, loss_of, args.micro)
    optimizer = optimizer_of(model.parameters())
    forward = torch.compile(model) if args.compile else model
    times = []
    for step in range(args.steps + 3):
        if args.mode != "single":
            dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        if args.mode == "1f1b":
            model.step()
        else:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                loss = loss_of(forward(x), y)
            loss.backward()
        optimizer.step()
        if step >= 3:
            times.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "median_ms": statistics.median(times) * 1e3}), flush=True)


if __name__ == "__main__":
    main()
