#!/usr/bin/env python3
"""Memory that 8 ranks of zero3 take (proportional set size, the most of any rank) against the prediction plus an idle rank's; bar
64 MiB. The idle rank trains a model of 72 parameters.

    tools/bench/memory.py [--nproc 8]
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
UNITS = {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}


def taken(plan, nproc, settings=()):
    """(predicted, taken) in MiB, as the summary says them."""
    command = [str(TOP / "build/release/bin/prun"), str(plan), "--nproc", str(nproc)]
    for setting in settings:
        command += ["--set", setting]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    line = next(line for line in text.splitlines() if line.startswith("memory"))
    sizes = [float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+) (B|KiB|MiB|GiB)", line)]
    return sizes[0], max(sizes[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, default=8)
    args = parser.parse_args()
    settings = ["steps=3", f"batch={8 * args.nproc}"]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as idle:
        idle.write('local prun = require "prun"\nreturn prun.plan {\n  mesh = prun.mesh { dp = prun.world },\n'
                   '  model = prun.models.mlp { layers = 1, width = 8 },\n  data = prun.data.random { batch = prun.world },\n'
                   '  strategy = { prun.ddp { axis = "dp" } },\n  optimizer = prun.sgd { lr = 0.1 },\n  steps = 3,\n}\n')
        idle.flush()
        _, base = taken(idle.name, args.nproc)
    predicted, most = taken(TOP / "plans/zero3.lua", args.nproc, settings)
    over = most - predicted - base
    print(f"zero3 on {args.nproc} ranks: predicted {predicted:.1f} MiB, an idle rank {base:.1f} MiB, taken {most:.1f} MiB: {over:+.1f} MiB, bar 64 MiB")
    return 0 if over <= 64 else 1


if __name__ == "__main__":
    sys.exit(main())
