#!/usr/bin/env python3
"""What this machine can do at most: multiply-adds in registers and copies in memory, of one core and of all; no bars.

    tools/bench/limits.py

Peaks are by product_bench (`cmake --preset bench && ninja -C build/bench product_bench`), of f32 and of bf16 as the CPU's
instructions have them, and of what AVX2 alone would do; those of all cores are measured with as many processes at once.
Copies are by peers/copy.cc, of 64 MiB in each process, bytes read and bytes written added up.
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
