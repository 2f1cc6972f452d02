#!/usr/bin/env python3
"""GPT-2 124M in bf16 on one GPU, prun against PyTorch: both sides in turn, medians, tokens/s and model FLOPs utilization.

    tools/bench/gpu_train.py                      # build/gpu/bin/prun (tools/gpu-check builds it), this interpreter's PyTorch
    tools/bench/gpu_train.py --torch PYTHON --batch 32

The batch is llm.c's, 64 samples of 1,024 tokens, or the largest half of it that fits on both sides. Model FLOPs a token
are 6N + 12·L·d·T as in PaLM (Chowdhery et al. 2022, appendix B), N without positions; the peak is the data sheet's, dense
bf16. Tokens are random: nothing here depends on what they are.

prun runs twice a round: as it is, giving the same bits in every run, and with --fast, whose default lets cuDNN's gradient
of attention add in any order, as PyTorch does, and times cuBLASLt's algorithms. The ratio is that of like with like, the
second; exit status 1: slower than PyTorch.
"""
import argparse
import array
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
SIZES = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50304}
REAL_VOCAB = 50257  # ids below it occur; the rest is padding
OUT_OF_MEMORY = 18  # prun's exit code


class DoesNotFit(Exception):
    pass


def write_tokens(path, vocab, count):
    ids, most = array.array("H", random.Random(0).randbytes(2 * count)), min(vocab, REAL_VOCAB)
    with open(path, "wb") as file:
        array.array("H", [i % most for i in ids]).tofile(file)


def parameters(s):
    block = 12 * s["width"] ** 2 + 13 * s["width"]
    return s["vocab"] * s["width"] + s["layers"] * block + 2 * s["width"]


def flops_per_token(s):
    return 6 * parameters(s) + 12 * s["layers"] * s["width"] * s["context"]


def run(words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


def last_line(done):
    return ((done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing was said"])[-1]


def prun_step_s(args, sizes, batch, tokens, options):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
        words = [args.prun, HERE / "gpt2.lua", "--device", args.device, "--metrics", metrics.name]
        words += ["--device-options", options] if options else []
        for name, value in {**sizes, "batch": batch, "micro": args.micro, "steps": args.warmup + args.steps, "data": tokens}.items():
            words += ["--set", f"{name}={value}"]
        done = run(words)
        if done.returncode == OUT_OF_MEMORY:
            raise DoesNotFit(last_line(done))
        if done.returncode != 0:
            raise RuntimeError(f"prun: {last_line(done)}")
        steps = [json.loads(line) for line in open(metrics.name)]
    return statistics.median(step["time_s"] for step in steps[args.warmup:]), steps[-1]["loss"]


def torch_step_s(args, sizes, batch, tokens):
    words = [args.torch, HERE / "peers/gpt2_torch.py", "--data", tokens, "--device", args.device, "--batch", batch, "--micro", args.micro,
             "--steps", args.steps, "--warmup", args.warmup, *(["--eager"] if args.eager else [])]
    for name, value in sizes.items():
        words += [f"--{name}", value]
    done = run(words)
    if done.returncode != 0:
        raise (DoesNotFit if "out of memory" in done.stderr.lower() else RuntimeError)(f"PyTorch: {last_line(done)}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["step_s"], found["last_loss"], found["torch"]


def peak_flops(args):
    """The device's own, by prun doctor; None where it is not known."""
    if args.peak:
        return args.peak * 1e12
    done = run([args.prun, "doctor", "--json"])
    try:
        devices = next(d for d in json.loads(done.stdout)["devices"] if d["name"] == args.device)["devices"]
        return devices[0]["peak_flops_bf16"] or None
    except (ValueError, KeyError, IndexError, StopIteration):
        return None


def measure(args, sizes, batch, tokens):
    plain, fast, theirs = [], [], []
    for _ in range(args.rounds):
        plain.append(prun_step_s(args, sizes, batch, tokens, ""))
        fast.append(prun_step_s(args, sizes, batch, tokens, args.fast))
        *found, version = torch_step_s(args, sizes, batch, tokens)
        theirs.append(found)
    return [(statistics.median(step_s for step_s, _ in all_), all_[-1][1]) for all_ in (plain, fast, theirs)], version


def side(step_s, loss, sizes, batch, peak):
    rate = batch * sizes["context"] / step_s
    flops = rate * flops_per_token(sizes)
    return {"step_ms": step_s * 1e3, "tokens_per_s": rate, "model_tflops": flops / 1e12, "mfu": flops / peak if peak else None, "last_loss": loss}


def text(name, found):
    mfu = f"MFU {found['mfu']:.1%}" if found["mfu"] is not None else "MFU unknown (--peak TFLOPS)"
    return f"{name:<42}{found['step_ms']:>9.2f} ms a step{found['tokens_per_s']:>14,.0f} tokens/s{found['model_tflops']:>8.1f} TFLOP/s  {mfu}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/gpu/bin/prun")
    parser.add_argument("--torch", default=sys.executable, help="Python with PyTorch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--fast", default="deterministic=0,autotune=1", help="prun's --device-options of the second run")
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, to begin with")
    parser.add_argument("--micro", type=int, default=1, help="microbatches of a step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=10, help="steps that do not count")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device in bf16, if prun does not know it")
    parser.add_argument("--eager", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file, too")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in SIZES}
    batch = args.batch
    with tempfile.NamedTemporaryFile(suffix=".bin") as tokens:
        write_tokens(tokens.name, args.vocab, max(2_000_000 if args.device == "cuda" else 0, 4 * batch * args.context))
        while True:
            try:
                medians, version = measure(args, sizes, batch, tokens.name)
                break
            except DoesNotFit as reason:
                if batch // 2 < args.micro:
                    print(f"does not fit: {reason}", file=sys.stderr)
                    return 2
                batch //= 2
                print(f"{reason}: trying {batch} samples a step", file=sys.stderr)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return 2
    peak = peak_flops(args)
    plain, fast, theirs = (side(*found, sizes, batch, peak) for found in medians)
    print(f"{parameters(sizes) / 1e6:.0f}M parameters, {batch} × {sizes['context']} tokens a step, medians of {args.rounds} × {args.steps} steps in turn")
    print(text("prun", plain))
    print(text(f"prun {args.fast}", fast))
    print(text(f"torch {version}", theirs))
    ratio, deterministic = (ours["tokens_per_s"] / theirs["tokens_per_s"] for ours in (fast, plain))
    print(f"ratio {ratio:.3f}, bar 1; with the same bits in every run {deterministic:.3f}")
    if args.json:
        found = {"prun": plain, "prun_fast": {**fast, "options": args.fast}, "torch": {**theirs, "version": version}, "batch": batch, "sizes": sizes,
                 "ratio": ratio}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if ratio >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
