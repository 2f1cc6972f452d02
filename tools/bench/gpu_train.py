#!/usr/bin/env python3
"""GPT-2 124M in bf16 on one GPU, prun against PyTorch: all sides alternately, medians, tokens/s and model FLOPs
utilization.

    tools/bench/gpu_train.py                      # build/gpu/bin/prun (tools/gpu-check builds it), this interpreter's PyTorch
    tools/bench/gpu_train.py --torch PYTHON --batch 32

The batch is llm.c's, 64 samples of 1,024 tokens, halved until it fits on both sides. Model FLOPs per token are 6N +
12·L·d·T as in PaLM (Chowdhery et al. 2022, appendix B), N without positions; the peak is the data sheet's for dense
bf16. Tokens are random, uniform or by Zipf's law (--ids).

prun runs twice per round. With --fast, cuDNN's attention gradient may accumulate in any order, as in PyTorch, and
cuBLASLt's algorithms are timed; without it, every run is bitwise the same. PyTorch runs eager and compiled. The ratio
compares prun --fast with compiled PyTorch; exit status 1: slower than PyTorch.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import token_ids

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
SIZES = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50304}
OUT_OF_MEMORY = 18  # prun's exit code


class DoesNotFit(Exception):
    pass


def parameters(s):
    block = 12 * s["width"] ** 2 + 13 * s["width"]
    return s["vocab"] * s["width"] + s["layers"] * block + 2 * s["width"]


def flops_per_token(s):
    return 6 * parameters(s) + 12 * s["layers"] * s["width"] * s["context"]


def run(words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


def last_line(done):
    return ((done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"])[-1]


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


def torch_step_s(args, sizes, batch, tokens, eagerly):
    words = [args.torch, HERE / "peers/gpt2_torch.py", "--data", tokens, "--device", args.device, "--batch", batch, "--micro", args.micro,
             "--steps", args.steps, "--warmup", args.warmup]
    for name, value in sizes.items():
        words += [f"--{name}", value]
    done, eager = run([*words, *(["--eager"] if eagerly else [])]), " eager" if eagerly else ""
    if done.returncode != 0 and not eagerly and "out of memory" not in done.stderr.lower():
        why = last_line(done)
        done, eager = run([*words, "--eager"]), f" without torch.compile, which failed: {why}"
    if done.returncode != 0:
        raise (DoesNotFit if "out of memory" in done.stderr.lower() else RuntimeError)(f"PyTorch: {last_line(done)}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["step_s"], found["last_loss"], found["torch"] + eager


def peak_flops(args):
    """Returns the device's peak from prun doctor, or None if it is unknown."""
    if args.peak:
        return args.peak * 1e12
    done = run([args.prun, "doctor", "--json"])
    try:
        devices = next(d for d in json.loads(done.stdout)["devices"] if d["name"] == args.device)["devices"]
        return devices[0]["peak_flops_bf16"] or None
    except (ValueError, KeyError, IndexError, StopIteration):
        return None


def side(what, times, sizes, batch, peak, loss):
    step_s = statistics.median(times)
    rate = batch * sizes["context"] / step_s
    flops = rate * flops_per_token(sizes)
    return {"what": what, "step_ms": step_s * 1e3, "tokens_per_s": rate, "model_tflops": flops / 1e12, "mfu": flops / peak if peak else None,
            "last_loss": loss, "rounds": len(times)}


SIDES = ("prun_fast", "torch_eager", "torch", "prun")


def measure(args, sizes, batch, tokens, found):
    """Measures the sides alternately into `found`, which is written after each side because a later one may fail or
    hang.
    """
    times, peak = {name: [] for name in SIDES}, peak_flops(args)
    found.update(batch=batch, sizes=sizes, no_torch="", ratio=None, **dict.fromkeys(SIDES))

    def add(name, what, step_s, loss):
        times[name].append(step_s)
        found[name] = side(what, times[name], sizes, batch, peak, loss)
        if found["torch"]:
            found["ratio"] = found["prun_fast"]["tokens_per_s"] / found["torch"]["tokens_per_s"]
        write(args, found)

    for _ in range(args.rounds):
        add("prun_fast", f"prun {args.fast}", *prun_step_s(args, sizes, batch, tokens, args.fast))
        found["no_torch"] = found["no_torch"] or why_no_torch(args)
        for name in ("torch_eager", "torch") if not found["no_torch"] else ():
            step_s, loss, version = torch_step_s(args, sizes, batch, tokens, args.eager or name == "torch_eager")
            add(name, f"PyTorch {version}", step_s, loss)
        add("prun", "prun", *prun_step_s(args, sizes, batch, tokens, ""))


def why_no_torch(args):
    asked = "import torch" + ("; assert torch.cuda.is_available()" if args.device == "cuda" else "")
    try:
        done = run([args.torch, "-c", asked])
    except OSError as error:
        return f"no PyTorch: {args.torch}: {error.strerror}"
    return "" if done.returncode == 0 else f"no PyTorch with {args.device} in {args.torch}"


def write(args, found):
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


def text(found):
    mfu = f"MFU {found['mfu']:.1%}" if found["mfu"] is not None else "MFU unknown (--peak TFLOPS)"
    return f"{found['what']:<42}{found['step_ms']:>9.2f} ms a step{found['tokens_per_s']:>14,.0f} tokens/s{found['model_tflops']:>8.1f} TFLOP/s  {mfu}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/gpu/bin/prun")
    parser.add_argument("--torch", default=sys.executable, help="Python with PyTorch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--fast", default="deterministic=0,autotune=1", help="prun's --device-options of the second run")
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, to begin with")
    parser.add_argument("--ids", choices=["uniform", "zipf"], default="uniform", help="how often each token occurs")
    parser.add_argument("--micro", type=int, default=1, help="microbatches of a step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=10, help="steps that do not count")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device in bf16, if prun does not know it")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file, too")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in SIZES}
    batch, found = args.batch, {}
    with tempfile.NamedTemporaryFile(suffix=".bin") as tokens:
        token_ids.write(tokens.name, args.ids, args.vocab, max(2_000_000 if args.device == "cuda" else 0, 4 * batch * args.context))
        while True:
            try:
                measure(args, sizes, batch, tokens.name, found)
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
    print(f"{parameters(sizes) / 1e6:.0f}M parameters, {batch} × {sizes['context']} tokens a step, medians of {args.rounds} × {args.steps} steps")
    for name in SIDES:
        if found[name]:
            print(text(found[name]))
    if found["no_torch"]:
        print(found["no_torch"], file=sys.stderr)
        return 2
    print(f"ratio {found['ratio']:.3f}, bar 1; with the same bits in every run {found['prun']['tokens_per_s'] / found['torch']['tokens_per_s']:.3f}")
    return 0 if found["ratio"] >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
