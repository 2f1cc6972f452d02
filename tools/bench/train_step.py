#!/usr/bin/env python3
"""Training step, prun against PyTorch on this machine: both sides alternately, several rounds, medians, one ratio per
row. Rounds that other users of the cores disturbed are measured again (steady.py).

    tools/bench/train_step.py                         # Debian's PyTorch (package python3-torch)
    tools/bench/train_step.py --torch PYTHON          # the PyTorch of another interpreter, such as a virtual environment's
    tools/bench/train_step.py --rows gpt-2,zero3-8    # some rows only
    tools/bench/train_step.py --isa AVX2              # both sides as on a CPU without AVX-512

Ranks x 1 thread. A ratio above 1 means that prun is faster. OPENBLAS_CORETYPE is unset for the peer because it would
slow it down.
"""
import argparse
import functools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

import figures
import rows
import steady
from figures import median_of, steps
from products import LIMITS

HERE = pathlib.Path(__file__).resolve().parent

# name: (plan, ranks, settings of the plan, peer's model, peer's mode, peer's extra arguments, bar)
# The bars of eager rows are for the default peer.
ROWS = {
    "gpt-2": ("ddp", 2, {"batch": 16}, "gpt", "ddp", [], 1.3),
    "gpt-8": ("ddp", 8, {"batch": 64}, "gpt", "ddp", [], 1.5),
    "ddp_example-2": ("ddp_example", 2, {}, "ddp_example", "ddp", [], 1.15),
    "ddp_example-8": ("ddp_example", 8, {}, "ddp_example", "ddp", [], 1.15),
    "gpt-2-compiled": ("ddp", 2, {"batch": 16}, "gpt", "ddp", ["--compile"], 1.1),
    "gpt-8-compiled": ("ddp", 8, {"batch": 64}, "gpt", "ddp", ["--compile"], 1.1),
    "gpt-2-bf16": ("ddp", 2, {"batch": 16, "dtype": "bf16"}, "gpt", "ddp", ["--bf16"], 1.2),
    "mlp-2": ("mlp", 2, {}, "mlp", "ddp", [], 1.15),
    "zero3-2": ("zero3", 2, {"batch": 16}, "gpt", "fsdp", [], 2.0),
    "zero3-8": ("zero3", 8, {"batch": 64}, "gpt", "fsdp", [], 2.0),
    "tp-2": ("megatron", 2, {"batch": 8, "sequence": "false"}, "gpt", "tp", [], 1.5),
    "megatron-2": ("megatron", 2, {"batch": 8}, "gpt", "sequence", [], 1.5),
    "1f1b-2": ("1f1b", 2, {"batch": 16}, "gpt", "1f1b", ["--batch", "16"], 1.3),
}
DEFAULT = ["gpt-2", "gpt-8", "ddp_example-2", "ddp_example-8"]
DEFAULT_TORCH = "/usr/bin/python3"
# Bars against the PyTorch of another interpreter.
BARS_OF_OTHERS = {"gpt-2": 1.25, "gpt-8": 1.4, "gpt-2-compiled": 1.25, "gpt-8-compiled": 1.4, "ddp_example-2": 1.05, "ddp_example-8": 1.05}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torch_ms(python, model, mode, ranks, extra, steps):
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    env.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), OMP_NUM_THREADS="1")
    ranks_of = [subprocess.Popen([python, str(HERE / "torch_step.py"), model, mode, "--steps", str(steps), *extra],
                                 env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for r in range(ranks)]
    outputs = [p.communicate() for p in ranks_of]
    if any(p.returncode for p in ranks_of):
        raise RuntimeError(next(err for (_, err), p in zip(outputs, ranks_of) if p.returncode).strip().splitlines()[-1])
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def one_round(args, row, look):
    """Returns prun's ms per step, its FLOP/s, the peer's ms per step, the peer's version."""
    plan, ranks, settings, model, mode, extra, _ = ROWS[row]
    taken = steps(plan, ranks, skip=3, **settings, steps=args.steps + 3)
    look()
    peer = torch_ms(args.torch, model, mode, ranks, extra, args.steps)
    return median_of(taken, "time_s") * 1e3, median_of(taken, "model_flops_per_s"), peer["median_ms"], peer["torch"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=DEFAULT_TORCH, help="Python with PyTorch")
    parser.add_argument("--rows", type=rows.names(ROWS), default=",".join(DEFAULT), help="of: " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prun", type=pathlib.Path, default=figures.PROGRAM)
    parser.add_argument("--isa", choices=LIMITS, help="leave out, on both sides, what this instruction set has not")
    rows.add_option(parser)
    args = parser.parse_args()
    figures.PROGRAM = args.prun
    os.environ.update(LIMITS.get(args.isa, {}))
    isa = f", {args.isa}" if args.isa else ""
    out = rows.File(args.json)
    print(f"{'row':<18}{'prun ms':>10}{'torch ms':>10}{'ratio':>8}{'bar':>7}  peer")
    short = False
    for row in args.rows:
        _, ranks, settings, _, mode, extra, bar = ROWS[row]
        if args.torch != DEFAULT_TORCH:
            bar = BARS_OF_OTHERS.get(row, bar)
        try:
            found, share = steady.measure(args.rounds, functools.partial(one_round, args, row))
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{row:<18} did not run: {error}")
            out.add(rows.failed(row + isa, str(error)))
            short = True
            continue
        ours, flops, theirs, versions = zip(*found)
        a, b, version = statistics.median(ours), statistics.median(theirs), versions[0]
        short = short or b / a < bar
        print(f"{row:<18}{a:>10.1f}{b:>10.1f}{b / a:>8.2f}{bar:>7.2f}  torch {version} {mode} {' '.join(extra)}", flush=True)
        dtype = settings.get("dtype", "f32")
        out.add(rows.compared(f"{row}, {ranks} ranks{isa}", "ms", a, " ".join(["torch", version, mode, *extra]), b, bar,
                              rate=[f"{dtype} peak{isa}", statistics.median(flops)], **steady.disturbed(share)))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
