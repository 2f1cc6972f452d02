#!/usr/bin/env python3
"""bf16 against our own f32: the ddp gpt on 2 ranks, both in turn, medians; bar 1.5.

    tools/bench/bf16.py
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def step_ms(dtype):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
        command = [TOP / "build/release/bin/prun", TOP / "plans/ddp.lua", "--nproc", 2, "--metrics", metrics.name]
        for setting in ("batch=16", "steps=13", f"dtype={dtype}"):
            command += ["--set", setting]
        subprocess.run([str(c) for c in command], check=True, capture_output=True)
        return statistics.median([json.loads(line)["time_s"] for line in open(metrics.name)][3:]) * 1e3


def main():
    f32, bf16 = (statistics.median(times) for times in zip(*[(step_ms("f32"), step_ms("bf16")) for _ in range(3)]))
    print(f"gpt, 2 ranks: f32 {f32:.0f} ms, bf16 {bf16:.0f} ms, ratio {f32 / bf16:.2f}, bar 1.5")
    return 0 if f32 / bf16 >= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
