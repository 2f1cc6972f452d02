"""Tokens per second of `prun generate` by context length, for GPT-2's blocks with bytes as tokens."""
import functools
import re

from gpu_check import remedies
from gpu_check.check import Check, Part, Verdict

CONTEXTS = (1024, 4096, 32768)
MADE = 64  # tokens, after a prompt that fills the context
SIZES = {"layers": 12, "width": 768, "heads": 12}
SMALL, SMALL_CONTEXTS = {"layers": 1, "width": 32, "heads": 2}, (64, 128, 256)


def contexts(context):
    return SMALL_CONTEXTS if context.small else CONTEXTS


def settings(context):
    found = {**(SMALL if context.small else SIZES), "context": contexts(context)[-1], "batch": 1, "micro": 1, "steps": 1, "dtype": "bf16"}
    return [word for name, value in found.items() for word in ("--set", f"{name}={value}")]


def text(context):
    """Writes a file of bytes as training data: two samples of the longest context."""
    path = context.scratch / "generation.txt"
    path.write_bytes(bytes(97 + i * i % 26 for i in range(2 * contexts(context)[-1] + 2)))
    return path


def weights(context):
    """Returns (how the training ended, the folder of a checkpoint after one step), shared by all lengths."""
    folder = context.scratch / "generation_weights"

    def train():
        return context.run(context.prun, "plans/single.lua", "--device", "cuda", *settings(context), "--set", f"data={text(context)}", "--checkpoint", folder,
                           timeout=90)
    return context.once("generation", train), folder


def rate(context, length):
    context.need_gpu()
    done, folder = weights(context)
    if not done.ok:
        return Verdict(False, note=f"no checkpoint to generate from: {done.why()}")
    made = min(MADE, length // 4)
    prompt = "".join(chr(97 + i * i % 26) for i in range(length - made))
    done = context.run(context.prun, "generate", "plans/single.lua", "--device", "cuda", *settings(context), "--checkpoint", folder, "--prompt", prompt,
                       "--tokens", made, timeout=90)
    found = re.search(r"(\d+) tokens?, ([\d.]+) a second", done.err)
    if not done.ok or not found:
        return Verdict(False, note=done.why())
    return Verdict(int(found[1]) == made, f"{found[2]} tokens/s, {1e3 / float(found[2]):.2f} ms each", "", "" if int(found[1]) == made else "too few tokens")


def checks(context):
    return [Check(f"{length // 1024 or length}{'k' if length >= 1024 else ''} of context", functools.partial(rate, length=length), timeout=100, least=15,
                  remedies=remedies.OF_DEVICES) for length in contexts(context)]


PART = Part("generation", "tokens a second by the length of the context", checks, limit=80, uses=("prun", "cuda", "lua", "plans/single.lua"))
