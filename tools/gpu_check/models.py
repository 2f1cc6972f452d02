"""Small models of every architecture in plans/architectures, and a GPT with each kind of optimizer, on one rank: their
losses must equal the CPU's, and be bitwise identical in two runs.

They have the ops that the plans of parity lack: attention with masks, convolutions, views, routing by groups, updates
of matrices.
"""
import functools
import sys

from gpu_check import parity, remedies
from gpu_check.check import Check, Part, Verdict

FOLDER = "plans/architectures"
OPTIMIZERS = "tests/parity/groups.lua"
GROUPS = ("own", "muon", "adafactor")
IN_BF16 = ("bert", "deepseek", "unet")


def trains(context, path, settings, dtype):
    if context.device == "cuda":
        context.need_gpu()
    return parity.compare(context, context.top / path, 1, {**settings, "dtype": dtype}, dtype)


def checks(context):
    context = context.of_check("models_data", float("inf"))
    data = context.folder / "architectures"
    data.mkdir(parents=True, exist_ok=True)
    written = context.run(sys.executable, context.top / FOLDER / "data.py", data, timeout=30)
    if not written.ok:
        return [Check("data", lambda _: Verdict(False, note=written.why()))]
    names = sorted(path.stem for path in (context.top / FOLDER).glob("*.lua"))
    # deepseek draws random tokens, the others read files.
    asked = [(name, f"{FOLDER}/{name}.lua", {} if name == "deepseek" else {"folder": data}, dtype)
             for dtype in ("f32", "bf16") for name in names if dtype == "f32" or name in IN_BF16]
    asked += [(groups, OPTIMIZERS, {"groups": groups}, "f32") for groups in GROUPS]
    return [Check(f"{name}, {dtype}", functools.partial(trains, path=path, settings=settings, dtype=dtype), timeout=60, least=15,
                  remedies=remedies.OF_RUNS if context.device == "cuda" else ())
            for name, path, settings, dtype in asked]


PART = Part("models", "losses of small models of every architecture and optimizer, against the CPU's", checks, limit=90, together=parity.TOGETHER,
            uses=("prun", "cuda", "lua", FOLDER, OPTIMIZERS))
