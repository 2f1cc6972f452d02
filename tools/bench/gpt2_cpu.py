#!/usr/bin/env python3
"""GPT-2 124M on this machine's CPU: prun beside llm.c's program and PyTorch, all sides in turn, medians, tokens/s.

    tools/bench/gpt2_cpu.py --llmc FOLDER --torch PYTHON     # FOLDER: the sources of github.com/karpathy/llm.c
    tools/bench/gpt2_cpu.py --torch PYTHON --batches short   # 4 × 64 tokens a step; long: 8 × 512
    tools/bench/gpt2_cpu.py --llmc FOLDER --dry              # what would run and what it takes, and end

llm.c's program is built in a temporary folder by its own Makefile, so with its flags; its batch is a constant of its
source and is replaced there, as is the number of its evaluations, which no step contains. Its weights and tokens are
random numbers in its formats. PyTorch runs eager and compiled; the faster counts. llm.c neither clips gradients nor
decays weights, which prun and PyTorch do. All sides take the machine's cores; prun is one rank.

Bars: 2 × llm.c and 1.05 × PyTorch in f32, 1.2 × in bf16. Exit status 1: one is missed.
"""
import argparse
import array
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

import rows
import steady
import token_ids
from gpu_train import HERE, SIZES, last_line, parameters
from token_ids import REAL_VOCAB

BATCHES = {"short": (4, 64), "long": (8, 512)}
STEPS = {"short": (5, 2), "long": (2, 1)}  # that count, and that warm up: of llm.c one of the long ones is more than a minute
BARS = {"llm.c": 2.0, "f32": 1.05, "bf16": 1.2}
SOURCE = "train_gpt2.c"
MAGIC_WEIGHTS, MAGIC_TOKENS = 20240326, 20240520
POSITIONS = 1024  # in the file of weights, whatever part of them a batch uses
STEP = re.compile(r"step (\d+): train loss \S+ \(took ([\d.]+) ms\)")


class Missing(Exception):
    """A side that cannot run here."""


def needed_gib(batch, context):
    """Of llm.c, which takes most: f32 weights, gradients and two moments; activations and their gradients, all kept."""
    s, tokens = SIZES, batch * context
    layer = tokens * (18 * s["width"] + 2 * s["heads"] * context)
    activations = s["layers"] * layer + tokens * (2 * s["width"] + 2 * s["vocab"])
    return (4 * parameters(s) + 2 * activations) * 4 / 2**30


def available_gib():
    return next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable")) / 2**20


def write_weights(path):
    """A header of 256 words (magic, version 3, positions, vocabulary, layers, heads, width, padded vocabulary), then all parameters in
    f32, kind by kind over all layers: random where GPT-2's are, ones and zeros of the norms and biases."""
    s, rng = SIZES, random.Random(0)
    width, layers = s["width"], s["layers"]
    header = [MAGIC_WEIGHTS, 3, POSITIONS, REAL_VOCAB, layers, s["heads"], width, s["vocab"]]
    some = array.array("f", (rng.gauss(0, 0.02) for _ in range(1 << 16)))
    kinds = [("random", s["vocab"] * width), ("random", POSITIONS * width), ("ones", layers * width), ("zeros", layers * width),
             ("random", layers * 3 * width * width), ("zeros", layers * 3 * width), ("random", layers * width * width),
             ("zeros", layers * width), ("ones", layers * width), ("zeros", layers * width), ("random", layers * 4 * width * width),
             ("zeros", layers * 4 * width), ("random", layers * width * 4 * width), ("zeros", layers * width), ("ones", width), ("zeros", width)]
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        for kind, count in kinds:
            pattern = some if kind == "random" else array.array("f", [float(kind == "ones")] * len(some))
            for done in range(0, count, len(pattern)):
                pattern[:min(len(pattern), count - done)].tofile(file)


def write_llmc_tokens(path, count):
    """A header of 256 words (magic, version 1, how many), then ids of 16 bits."""
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", MAGIC_TOKENS, 1, count, *[0] * 253))
        rng = random.Random(0)
        array.array("H", (rng.randrange(REAL_VOCAB) for _ in range(count))).tofile(file)


class LlmC:
    """llm.c's program, built for each batch, in a folder that goes away."""

    def __init__(self, sources, folder, compiler):
        if not (sources / SOURCE).exists():
            raise Missing(f"{sources} has no {SOURCE}")
        self.sources, self.folder, self.compiler, self.programs = sources, folder / "llmc", compiler, {}
        tokens = self.folder / "dev/data/tinyshakespeare"
        tokens.mkdir(parents=True)
        write_weights(self.folder / "gpt2_124M.bin")
        for part in ("train", "val"):
            write_llmc_tokens(tokens / f"tiny_shakespeare_{part}.bin", 1 << 17)

    def build(self, batch, context):
        at = self.folder / f"build{batch}x{context}"
        at.mkdir()
        shutil.copytree(self.sources / "llmc", at / "llmc")
        shutil.copy(self.sources / "Makefile", at)
        text = (self.sources / SOURCE).read_text()
        for constant, value in (("int B", batch), ("int T", context), ("int val_num_batches", 0)):
            text, found = re.subn(rf"\b{constant} = \d+;", f"{constant} = {value};", text)
            if found != 1:
                raise Missing(f"{SOURCE} has no line '{constant} = ...;'")
        (at / SOURCE).write_text(text)
        words = ["make", "train_gpt2"] + ([f"CC={self.compiler}"] if self.compiler else [])
        done = subprocess.run(words, cwd=at, capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(f"llm.c cannot be built: {last_line(done)}")
        return at / "train_gpt2"

    def step_s(self, batch, context, steps, warmup):
        if (batch, context) not in self.programs:
            self.programs[batch, context] = self.build(batch, context)
        # A line at a time, and no more of its 41 steps than are asked for.
        process = subprocess.Popen(["stdbuf", "-oL", self.programs[batch, context]], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        times = []
        try:
            for line in process.stdout:
                found = STEP.match(line)
                times += [float(found[2]) / 1e3] if found else []
                if len(times) == steps + warmup:
                    break
        finally:
            process.kill()
            process.wait()
        if len(times) < steps + warmup:
            raise Missing(f"llm.c's program ended after {len(times)} steps")
        return statistics.median(times[warmup:])


def prun_step(args, dtype, batch, context, steps, warmup, tokens):
    """(seconds, FLOPs a second of the model)"""
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
    """All sides of a batch: seconds a step by name; a side that fails is not tried again."""

    def __init__(self, args, llmc, tokens):
        self.args, self.llmc, self.tokens, self.version = args, llmc, tokens, ""

    def names(self, dtypes):
        sides = [("prun", dtype) for dtype in dtypes]
        if self.llmc and "f32" in dtypes:
            sides.append(("llm.c", "f32"))
        if self.args.torch:
            sides += [(mode, dtype) for dtype in dtypes for mode in ("eager", "compiled")]
        return sides

    def step(self, side, dtype, *sizes):
        if side == "prun":
            return prun_step(self.args, dtype, *sizes, self.tokens)
        if side == "llm.c":
            return self.llmc.step_s(*sizes), None
        seconds, self.version = torch_step_s(self.args, dtype, side == "compiled", *sizes, self.tokens)
        return seconds, None

    def measure(self, dtypes, *sizes):
        """({side: (seconds, FLOPs a second)}, {side: why not}, steady.py's share); `sizes`: batch, context, steps that count, and that
        warm up."""
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


def rows_of(name, batch, context, dtypes, found, errors, version, share=None):
    tokens, out = batch * context, []
    for dtype in dtypes:
        what = f"GPT-2 124M, {batch} × {context} tokens, {dtype}"
        if ("prun", dtype) not in found:
            out.append(rows.failed(what, errors["prun", dtype]))
            continue
        step_s, flops = found["prun", dtype]
        ours, limit = tokens / step_s, {"rate": [f"{dtype} peak", flops], **steady.disturbed(share)}
        peers = [("llm.c", BARS["llm.c"], [("llm.c", dtype)]), (f"PyTorch {version}", BARS[dtype], [("compiled", dtype), ("eager", dtype)])]
        before = len(out)
        for peer, bar, sides in peers:
            there = [side for side in sides if side in found]
            if there:
                best = min(there, key=lambda side: found[side][0])
                # A row of the table is found by its text: each peer has one of its own.
                of = what if "PyTorch" in peer else f"{what}, against {peer}"
                out.append(rows.compared(of, "tokens/s", ours, peer + (f" {best[0]}" if "PyTorch" in peer else ""), tokens / found[best][0], bar,
                                         more_is_better=True, **limit))
            elif any(side in errors for side in sides):
                out.append(rows.failed(f"{what}, against {peer.split()[0]}", next(errors[side] for side in sides if side in errors)))
        if len(out) == before:
            out.append(rows.alone(what, "tokens/s", ours, **limit))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=rows.TOP / "build/release/bin/prun")
    parser.add_argument("--llmc", type=pathlib.Path, metavar="FOLDER", help="sources of llm.c")
    parser.add_argument("--cc", help="compiler of llm.c (default: make's own)")
    parser.add_argument("--torch", metavar="PYTHON", help="Python with PyTorch")
    parser.add_argument("--batches", type=rows.names(BATCHES), default=",".join(BATCHES), help="of: " + ", ".join(BATCHES))
    parser.add_argument("--types", type=rows.names(["f32", "bf16"]), default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="default: 5, 2 of the long ones")
    parser.add_argument("--warmup", type=int, help="steps that do not count; default: 2, 1 of the long ones")
    parser.add_argument("--dry", action="store_true", help="say what would run, and end")
    rows.add_option(parser)
    args = parser.parse_args()
    out = rows.File(args.json)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tokens = folder / "tokens.bin"
        token_ids.write(tokens, "uniform", SIZES["vocab"], 1 << 17)
        try:
            llmc = LlmC(args.llmc.resolve(), folder, args.cc) if args.llmc and not args.dry else None
        except Missing as why:
            parser.error(str(why))
        for name in args.batches:
            batch, context = BATCHES[name]
            needed = needed_gib(batch, context) if args.llmc else 4
            print(f"{name}: {batch} × {context} tokens a step; takes up to {needed:.1f} GiB, {available_gib():.1f} are available", file=sys.stderr)
            if args.dry:
                continue
            steps, warmup = (ours if asked is None else asked for asked, ours in zip((args.steps, args.warmup), STEPS[name]))
            sides = Sides(args, llmc if needed < available_gib() else None, tokens)
            found, errors, share = sides.measure(args.types, batch, context, steps, warmup)
            if llmc and sides.llmc is None:
                errors["llm.c", "f32"] = f"needs {needed:.1f} GiB"
            for row in rows_of(name, batch, context, args.types, found, errors, sides.version, share):
                out.tell(row)
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
