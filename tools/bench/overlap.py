#!/usr/bin/env python3
"""Exposed communication of zero3 with prefetch 1 over sockets, as a share of its communication time; bar 10 %.

Exposed: time in which the compute stream waits for an edge from a communication op. The model's compute covers its
communication: a wide gpt with a long batch on 2 ranks.

    tools/bench/overlap.py [--transport socket]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="socket")
    parser.add_argument("--nproc", type=int, default=2)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
        command = [TOP / "build/release/bin/prun", TOP / "plans/zero3.lua", "--nproc", args.nproc, "--transport", args.transport,
                   "--metrics", metrics.name]
        for setting in ("steps=12", "layers=4", "width=512", "heads=8", "context=256", "batch=32"):
            command += ["--set", setting]
        subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in open(metrics.name)][2:]
    share = statistics.median(r["exposed_comm_s"] / r["comm_s"] for r in rows)
    print(f"zero3, {args.nproc} ranks, {args.transport}: step {statistics.median(r['time_s'] for r in rows) * 1e3:.0f} ms, communication "
          f"{statistics.median(r['comm_s'] for r in rows) * 1e3:.0f} ms, exposed {share * 100:.1f} % of it, bar 10 %")
    return 0 if share < 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
