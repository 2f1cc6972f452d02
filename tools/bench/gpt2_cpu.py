#!/usr/bin/env python3
"""GPT-2 124M on this machine's CPU: prun against PyTorch, all sides alternately, medians, tokens/s.

    tools/bench/gpt2_cpu.py --torch PYTHON                   # f32 and bf16, 4 × 64 and 8 × 512 tokens per step
    tools/bench/gpt2_cpu.py --torch PYTHON --batches short   # 4 × 64 tokens per step; long: 8 × 512

PyTorch runs eager and compiled; the faster counts. All sides use all cores of the machine; prun is one rank.

Bars: 1.05 × PyTorch in f32, 1.2 × in bf16. Exit status 1: one is missed.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import rows
import steady
import token_ids
from gpu_train import HERE, SIZES, last_line

BATCHES = {"short": (4, 64), "long": (8, 512)}
STEPS = {"short": (5, 2), "long": (2, 1)}  # (measured steps, warm-up steps)
BARS = {"f32": 1.05, "bf16": 1.2}


class Missing(Exception):
    """A side that cannot run here."""


def prun_step(args, dtype, batch, context, steps, warmup, tokens):
    """Returns (seconds, model FLOP/s)."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
        words = [args.prun, HERE / "gpt2.lua", "--metrics", metrics.name]
        for name, value in {**SIZES, "context": context, "batch": batch, "steps": warmup + steps, "data": tokens, "dtype": dtype}.items():
            words += ["--set", f"{name}={value}"]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(f"prun: {last_line(done)}")
        taken = [json.loads(line) for line in open(metrics.name)][warmup:]
    return statistics.median(s["time_s"] for s in taken), statistics.median(s["model_flops_per_s"] for s in taken)


def torch_step_s(args, dtype, compiled, batch, context, steps, warmup, tokens):
    words = [args.torch, HERE / "peers/gpt2_torch.py", "--data", tokens, "--device", "cpu", "--dtype", dtype, "--batch", batch, "--steps", steps,
             "--warmup", warmup, "--threads", len(os.sched_getaffinity(0)), "--context", context]
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    done = subprocess.run([str(word) for word in words] + ([] if compiled else ["--eager"]), env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"PyTorch: {last_line(done)}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["step_s"], found["torch"]


class Sides:
    """All sides of a batch: seconds per step by name; a side that fails is not retried."""

    def __init__(self, args, tokens):
        self.args, self.tokens, self.version = args, tokens, ""

    def names(self, dtypes):
        sides = [("prun", dtype) for dtype in dtypes]
        if self.args.torch:
            sides += [(mode, dtype) for dtype in dtypes for mode in ("eager", "compiled")]
        return sides

    def step(self, side, dtype, *sizes):
        if side == "prun":
            return prun_step(self.args, dtype, *sizes, self.tokens)
        seconds, self.version = torch_step_s(self.args, dtype, side == "compiled", *sizes, self.tokens)
        return seconds, None

    def measure(self, dtypes, *sizes):
        """Returns ({side: (seconds, FLOP/s)}, {side: reason of failure}, steady.py's share); `sizes`: batch, context,
        measured steps, warm-up steps.
        """
        errors = {}

        def one_round(look):
            taken = {}
            for side in self.names(dtypes):
                if side in errors:
                    continue
                try:
                    taken[side] = self.step(*side, *sizes)
                except Missing as why:
                    errors[side] = str(why)
                    print(f"{' '.join(side)}: {why}", file=sys.stderr)
                look()
            return taken

        rounds, share = steady.measure(self.args.rounds, one_round)
        found = {}
        for side in rounds[0]:
            columns = list(zip(*(taken[side] for taken in rounds if side in taken)))
            found[side] = tuple(None if None in column else statistics.median(column) for column in columns)
        return found, errors, share


def rows_of(batch, context, dtypes, found, errors, version, share=None):
    tokens, out = batch * context, []
    for dtype in dtypes:
        what = f"GPT-2 124M, {batch} × {context} tokens, {dtype}"
        if ("prun", dtype) not in found:
            out.append(rows.failed(what, errors["prun", dtype]))
            continue
        step_s, flops = found["prun", dtype]
        ours, limit = tokens / step_s, {"rate": [f"{dtype} peak", flops], **steady.disturbed(share)}
        there = [side for side in (("compiled", dtype), ("eager", dtype)) if side in found]
        wrong = next((errors[side] for side in (("compiled", dtype), ("eager", dtype)) if side in errors), None)
        if there:
            best = min(there, key=lambda side: found[side][0])
            out.append(rows.compared(what, "tokens/s", ours, f"PyTorch {version} {best[0]}", tokens / found[best][0], BARS[dtype], more_is_better=True, **limit))
        else:
            out.append(rows.failed(f"{what}, against PyTorch", wrong) if wrong else rows.alone(what, "tokens/s", ours, **limit))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=rows.TOP / "build/release/bin/prun")
    parser.add_argument("--torch", metavar="PYTHON", help="Python with PyTorch")
    parser.add_argument("--batches", type=rows.names(BATCHES), default=",".join(BATCHES), help="of: " + ", ".join(BATCHES))
    parser.add_argument("--types", type=rows.names(["f32", "bf16"]), default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="default: 5, 2 of the long ones")
    parser.add_argument("--warmup", type=int, help="steps that do not count; default: 2, 1 of the long ones")
    rows.add_option(parser)
    args = parser.parse_args()
    out = rows.File(args.json)
    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder, "tokens.bin")
        token_ids.write(tokens, "uniform", SIZES["vocab"], 1 << 17)
        for name in args.batches:
            batch, context = BATCHES[name]
            steps, warmup = (ours if asked is None else asked for asked, ours in zip((args.steps, args.warmup), STEPS[name]))
            sides = Sides(args, tokens)
            found, errors, share = sides.measure(args.types, batch, context, steps, warmup)
            out.tell(*rows_of(batch, context, args.types, found, errors, sides.version, share))
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
