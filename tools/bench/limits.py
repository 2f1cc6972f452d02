#!/usr/bin/env python3
"""Peak rates of this machine, for one core and for all: FMAs in registers and copies in memory; no bars.

    tools/bench/limits.py

product_bench measures peaks (`cmake --preset bench && ninja -C build/bench product_bench`) of f32, of bf16 with the
CPU's instructions, and of AVX2 alone; those of all cores are measured by as many concurrent processes. peers/copy.cc
measures copies of 64 MiB in each process, counting bytes read plus bytes written.
"""
import argparse
import json
import os
import subprocess
import sys

import rows
import steady
from collectives import build_peers
from products import LIMITS

COPIED = 64 << 20


def copied(program, ranks, seconds):
    best = 0
    for way in ("copy", "stream"):
        done = subprocess.run([str(program), str(ranks), way, str(COPIED), str(seconds)], check=True, capture_output=True, text=True)
        best = max(best, 2 * ranks * COPIED / (json.loads(done.stdout)["time_us"] * 1e-6))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1, help="of a copy")
    rows.add_option(parser)
    args = parser.parse_args()
    cores, out = len(os.sched_getaffinity(0)), rows.File(args.json)
    program = build_peers().get("copy")
    for n, whose in ((1, " a core"), (cores, "")):
        found = []
        for isa, which in (("", ""), ("AVX2", ", AVX2")):
            columns = zip(*steady.peaks(n, os.environ | LIMITS.get(isa, {})))
            found += [rows.alone(f"{dtype} peak{whose}{which}", "GFLOP/s", sum(column) / 1e9) for dtype, column in zip(("f32", "bf16"), columns)]
        if program:
            found.append(rows.alone(f"copy{whose}", "GB/s", copied(program, n, args.seconds) / 1e9))
        out.tell(*found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
