#!/usr/bin/env python3
"""The op attend on one core of the CPU: beside the fused attention, with a window, and with documents in one stream.

    tools/bench/attend.py
    tools/bench/attend.py --rounds 2 --build build/ci/bin

Needs `cmake --preset bench && ninja -C build/bench attend_bench`. Times are CPU time of one thread, the least of all
rounds, whose benchmarks alternate. Documents in one stream should cost what they cost one by one, that is Σ lengths².
"""
import argparse
import json
import pathlib
import subprocess
import sys

import rows

REPETITIONS = 5  # of a benchmark per round
# (benchmark, its peer, most times the peer's time or None): fused attention reads q, k and v from one tensor.
PAIRS = [("causal", "fused", None), ("window 128", "causal", None), ("packed even", "apart even", 1.2), ("packed uneven", "apart uneven", 1.2)]
WORDS = {"fused": "the fused attention", "causal": "causal", "window 128": "a causal window of 128", "packed even": "documents of 128 tokens",
         "apart even": "one by one", "packed uneven": "documents of 512 to 32 tokens", "apart uneven": "one by one"}


def microseconds(program, rounds, seconds):
    """Returns {benchmark/direction: least CPU time in µs} over all rounds."""
    least = {}
    for _ in range(rounds):
        words = [program, f"--benchmark_min_time={seconds / REPETITIONS}", f"--benchmark_repetitions={REPETITIONS}", "--benchmark_format=json",
                 "--benchmark_enable_random_interleaving=true"]
        done = json.loads(subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout)
        for one in done["benchmarks"]:
            if one["run_type"] == "iteration":
                least[one["name"]] = min(one["cpu_time"], least.get(one["name"], one["cpu_time"]))
    return least


def rows_of(least):
    """Returns a row for each pair and direction; its bar is in times of the peer's time."""
    for direction in ("forward", "backward"):
        for name, peer, most in PAIRS:
            ours, theirs = least[f"{name}/{direction}"], least[f"{peer}/{direction}"]
            row = rows.compared(f"attend {direction}, {WORDS[name]}", "µs", ours, WORDS[peer], theirs)
            yield row if most is None else {**row, "bar": f"≤ {most} × its time", "reached": ours <= most * theirs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=rows.TOP / "build/bench/bin", metavar="FOLDER", help="of attend_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a benchmark per round")
    rows.add_option(parser)
    args = parser.parse_args()
    program = args.build / "attend_bench"
    if not program.exists():
        parser.error(f"there is no {program}; build it: cmake --preset bench && ninja -C build/bench attend_bench")
    print(f"{rows.cpu_name()}, one thread, f32, 1 x 1,024 tokens, 12 heads of 64")
    out = rows.File(args.json)
    out.tell(*rows_of(microseconds(program, args.rounds, args.seconds)))
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
