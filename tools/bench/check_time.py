#!/usr/bin/env python3
"""`prun check` of a 96-layer gpt under zero3 on 1,024 ranks: median wall time; bar 1 s.

    tools/bench/check_time.py
"""
import pathlib
import statistics
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    command = [str(TOP / "build/release/bin/prun"), "check", str(TOP / "plans/zero3.lua"), "--nproc", "1024"]
    for setting in ("layers=96", "width=768", "heads=12", "context=128", "batch=1024"):
        command += ["--set", setting]
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    median = statistics.median(times)
    print(f"prun check, 96 layers, 1,024 ranks: median {median * 1e3:.0f} ms, bar 1000 ms")
    return 0 if median < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
