#!/usr/bin/env python3
"""More ranks on one machine than cores; exits with 1 if a bar is missed.

    tools/bench/scale.py                     # all three
    tools/bench/scale.py train --ranks 64
    tools/bench/scale.py many --ranks 1000 --seconds 900

train   tokens/s of a small gpt under ddp with the same batch per rank: 64 ranks relative to one per core, alternately.
        Each rank adds an optimizer, messages and context switches; below a quarter is a collapse
idle    largest private memory (unique set size) of a rank, in a job that trains 72 parameters
many    1,000 ranks that train 72 parameters: from command to its end, which must be a success
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import rows
from figures import IDLE

LEAST_SHARE, MOST_IDLE_MIB = 0.25, 12


class DidNotRun(Exception):
    pass


def run(args, plan, ranks, *words, **settings):
    words = [args.prun, plan, "--nproc", ranks, *words]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=args.seconds)
    except subprocess.TimeoutExpired:
        raise DidNotRun(f"no end after {args.seconds:.0f} s") from None
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if line.startswith("prun: ")), "without a word")
        raise DidNotRun(f"exit {done.returncode}: {first}")


def train(args):
    ranks, cores = args.ranks or 64, len(os.sched_getaffinity(0))

    def tokens_per_s(n):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
            run(args, rows.TOP / "plans/ddp.lua", n, "--metrics", metrics.name, layers=2, width=128, context=64, batch=4 * n, steps=args.steps + 2)
            steps = [json.loads(line) for line in open(metrics.name)][2:]
        return statistics.median(step["tokens_per_s"] for step in steps)
    times = [(tokens_per_s(ranks), tokens_per_s(cores)) for _ in range(args.rounds)]
    many, few = (statistics.median(column) for column in zip(*times))
    row = rows.compared(f"ddp, {ranks} ranks on {cores} cores", "tokens/s", many, f"{cores} ranks", few, LEAST_SHARE, more_is_better=True)
    return row


def descendants(pid):
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


def private_mib(pid):
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def idle(args):
    ranks = args.ranks or 8
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder, "metrics.jsonl")
        words = [args.prun, IDLE, "--nproc", ranks, "--set", "steps=1000000", "--metrics", metrics]
        job = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + args.seconds
            while not (metrics.exists() and metrics.stat().st_size) and job.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            if job.poll() is not None or time.monotonic() >= until:
                raise DidNotRun(f"no step was made within {args.seconds:.0f} s")
            most = max(private_mib(pid) for pid in descendants(job.pid))
        finally:
            job.send_signal(signal.SIGTERM)
            job.communicate()
    return rows.at_most(f"private memory of an idle rank, {ranks} ranks", "MiB", most, MOST_IDLE_MIB)


def many(args):
    ranks = args.ranks or 1000
    begin = time.monotonic()
    run(args, IDLE, ranks)
    taken = time.monotonic() - begin
    return rows.alone(f"{ranks:,} ranks, one tiny layer, 3 steps, command to its end", "s", taken, "ends", True)


FIGURES = {figure.__name__: figure for figure in (train, idle, many)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="of: " + ", ".join(FIGURES))
    parser.add_argument("--prun", type=pathlib.Path, default=rows.TOP / "build/release/bin/prun")
    parser.add_argument("--ranks", type=int, help="default: each figure's own")
    parser.add_argument("--rounds", type=int, default=3, help="of train")
    parser.add_argument("--steps", type=int, default=5, help="of train")
    parser.add_argument("--seconds", type=float, default=900, help="the longest that a job may take")
    rows.add_option(parser)
    args = parser.parse_args()
    out = rows.File(args.json)
    for name in args.figures or FIGURES:
        if name not in FIGURES:
            parser.error(f"there is no figure {name}; there are " + ", ".join(FIGURES))
        try:
            out.tell(FIGURES[name](args))
        except DidNotRun as why:
            out.tell(rows.failed(f"{name}, {args.ranks} ranks" if args.ranks else name, str(why)))
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
