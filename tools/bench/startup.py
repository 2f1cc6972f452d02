#!/usr/bin/env python3
"""From command to the end of step 1: 8 ranks of a small plan, wall time of the whole command with one step. Median; bar 0.5 s.

    tools/bench/startup.py [--nproc 8]
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    command = [TOP / "build/release/bin/prun", TOP / "plans/zero3.lua", "--nproc", args.nproc]
    for setting in ("steps=1", "layers=2", "width=64", "context=32", f"batch={args.nproc}"):
        command += ["--set", setting]
    times = []
    for _ in range(args.rounds):
        begin = time.perf_counter()
        subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    median = statistics.median(times)
    print(f"{args.nproc} ranks, command to its end after 1 step: median {median * 1e3:.0f} ms, least {min(times) * 1e3:.0f} ms, bar 500 ms")
    return 0 if median < 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
