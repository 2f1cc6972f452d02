"""GPT-2 124M in bf16, prun and PyTorch alternately on the same card (tools/bench/gpu_train.py)."""
import json
import sys

from gpu_check.bars import BARS, TRAINING
from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible

SIDES = ("prun_fast", "torch_eager", "torch", "prun")  # order of measurement: partial results count
SMALL = ["--layers", 1, "--width", 64, "--heads", 2, "--context", 32, "--vocab", 512, "--batch", 4, "--steps", 3, "--warmup", 1]


def python_of(context):
    return context.options.torch or sys.executable


def measured(context, name, words):
    """Returns (how the program ended, the content of its --json file, which it writes after every measurement)."""
    out = context.folder / name
    out.unlink(missing_ok=True)
    done = context.run(*words, "--json", out)
    try:
        return done, json.loads(out.read_text())
    except (OSError, ValueError):
        return done, None


def training(context):
    context.need_gpu()
    bar = BARS[TRAINING]
    done, found = measured(context, "gpu_train.json", [sys.executable, "tools/bench/gpu_train.py", "--prun", context.prun, "--torch", python_of(context),
                                                       "--rounds", 1, *(SMALL if context.small else ["--steps", 20])])
    if not found or not any(found.get(name) for name in SIDES):
        return Verdict(False, bar=bar, note=done.why())
    sides = [found[name] for name in SIDES if found[name]]
    table = [["", "ms a step", "tokens/s", "model TFLOP/s", "MFU", "last loss"]]
    for side in sides:
        mfu = f"{side['mfu']:.1%}" if side["mfu"] is not None else "unknown"
        table.append([side["what"], f"{side['step_ms']:.2f}", f"{side['tokens_per_s']:,.0f}", f"{side['model_tflops']:.1f}", mfu, f"{side['last_loss']:.3f}"])
    figure = "; ".join(f"{row[0]}: {row[2]} tokens/s, MFU {row[4]}" for row in table[1:]) + f"; {found['batch']} samples a step"
    if not found["prun_fast"] or not found["torch"]:  # a partial result
        if found["prun_fast"] and found["no_torch"]:
            raise NotPossible(f"{found['no_torch']} (--torch PYTHON); {figure}")
        return Verdict(False, figure, bar, done.why(), table)
    ratio = found["prun_fast"]["tokens_per_s"] / found["torch"]["tokens_per_s"]
    deterministic = f", with the same bits in every run {found['prun']['tokens_per_s'] / found['torch']['tokens_per_s']:.3f} ×" if found["prun"] else ""
    problem = "slower" if ratio < 1 else "not the PyTorch that was asked for" if "without torch.compile" in found["torch"]["what"] else ""
    return Verdict(not problem, f"{figure}; {ratio:.3f} × PyTorch{deterministic}", bar, problem, table)


PART = Part("pytorch", "GPT-2 124M beside PyTorch, eager and compiled", lambda _: [Check(TRAINING, training, timeout=420, least=60)], limit=170,
            uses=("prun", "cuda", "lua", "tools/bench/gpt2.lua", "tools/bench/gpu_train.py", "tools/bench/peers/gpt2_torch.py"))
