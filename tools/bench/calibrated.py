#!/usr/bin/env python3
"""This machine's calibration against its own runs: `prun calibrate`, then each plan simulated and run alternately.

    tools/bench/calibrated.py [--prun PROGRAM]                  # steps: predicted and measured
    tools/bench/calibrated.py --collectives                     # curves of collectives: measured and predicted by the file
    tools/bench/calibrated.py --cluster FILE                    # with an existing calibration
    tools/bench/calibrated.py --rows ddp,zero3 --rounds 3

Steps: a plan's default arguments on 2 ranks, median over steps and rounds. Exposed communication is the time that a
rank's compute stream waits, including the simulator's bubble, because a run does not show which rank a transfer
waits for.
Bars: 10 % of the step, 10 points of exposed communication, 15 % of a collective from 4 MiB up.
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import rows

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PLANS = ["ddp", "zero3", "1f1b", "megatron"]
RANKS, STEPS, SKIPPED = 2, 14, 4
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "B": 1, "KiB": 1024, "MiB": 1 << 20, "MB/s": 1e6, "GB/s": 1e9}


def command(*words):
    return subprocess.run([str(word) for word in words], cwd=TOP, check=True, capture_output=True, text=True, timeout=900).stdout


def measured(prun, plan, folder):
    """Returns the median step in seconds, and its fraction of exposed communication."""
    rows = folder / "rows.jsonl"
    command(prun, f"plans/{plan}.lua", "--nproc", RANKS, "--set", f"steps={STEPS}", "--metrics", rows, "--overwrite")
    steps = [json.loads(line) for line in rows.read_text().splitlines()][SKIPPED:]
    return (statistics.median(row["time_s"] for row in steps),
            statistics.median(row["exposed_comm_s"] / row["time_s"] for row in steps))


def simulated(prun, plan, cluster):
    result = json.loads(command(prun, "sim", f"plans/{plan}.lua", "--cluster", cluster, "--nproc", RANKS, "--json"))
    return result["step_s"], result["exposed_comm_s"] / result["step_s"] + result["bubble"]


def steps(args, cluster, folder):
    print(f"{'plan':<10}{'measured':>11}{'simulated':>11}{'error':>9}{'exposed':>10}{'simulated':>11}{'points':>9}")
    short = False
    times = {plan: [] for plan in args.rows}
    for _ in range(args.rounds):  # alternately, so that a disturbance affects all plans
        for plan, runs in times.items():
            runs.append(measured(args.prun, plan, folder))
    for plan, runs in times.items():
        step, exposed = (statistics.median(column) for column in zip(*runs))
        step_sim, exposed_sim = simulated(args.prun, plan, cluster)
        error, points = 100 * (step_sim / step - 1), 100 * (exposed_sim - exposed)
        short = short or abs(error) > 10 or abs(points) > 10
        print(f"{plan:<10}{step * 1e3:>8.0f} ms{step_sim * 1e3:>8.0f} ms{error:>+7.1f} %{100 * exposed:>8.1f} %"
              f"{100 * exposed_sim:>9.1f} %{points:>+9.1f}", flush=True)
    return short


def curves(args, cluster):
    """Compares each transport's collectives, measured by prun bench, with the formula and the file's parameters."""
    model = measured_collectives(cluster.read_text())
    print(f"{'transport':<12}{'collective':<16}{'size':>9}{'measured':>13}{'formula':>13}{'error':>9}")
    short = False
    for name, link in model.items():
        transport, options = ("socket", ["--transport-options", "unix=0"]) if name == "socket-tcp" else (name, [])
        samples = {}
        for _ in range(args.rounds):
            text = command(args.prun, "bench", ",".join(COLLECTIVES), "--nproc", RANKS, "--transport", transport, *options,
                           "--bytes", "4M:64M:4", "--place", "out", "--check", 0, "--json")
            for row in map(json.loads, text.splitlines()):
                samples.setdefault((row["op"], row["bytes"]), []).append(row["time_us"] * 1e-6)
        for (op, size), times in samples.items():
            measured_s, formula_s = statistics.median(times), seconds_of(*link[op], op, size)
            error = 100 * (formula_s / measured_s - 1)
            short = short or abs(error) > 15
            print(f"{name:<12}{op:<16}{size >> 20:>5} MiB{measured_s * 1e6:>10.0f} us{formula_s * 1e6:>10.0f} us{error:>+7.1f} %",
                  flush=True)
    return short


def measured_collectives(text):
    """Reads prun calibrate's file, one line per collective: transport -> collective -> (step, bandwidth)."""
    found, transport, inside = {}, "", False
    for line in text.split("\ntransports:\n")[1].splitlines():
        if re.match(r"  \S", line):
            transport = found.setdefault(line.strip(" :"), {})
        if re.match(r"    \S", line):
            inside = line.strip() == "collectives:"
        rates = re.fullmatch(r"      (\w+): { step: ([^,]+), bandwidth: (.*) }", line)
        if inside and rates:
            points = re.findall(r"(\d+ \w+): ([^,}]+?)(?= *[,}])", rates[3]) or [("1 B", rates[3])]
            transport[rates[1]] = quantity(rates[2]), [(quantity(at), quantity(speed)) for at, speed in points]
    return found


def seconds_of(step, points, op, size):
    """The ring inside a node in prun sim's cost model: steps · step + c(n-1)/n · S / bandwidth."""
    c = 2 if op == "all_reduce" else 1
    moved = size * (1 if op == "broadcast" else c * (RANKS - 1) / RANKS)
    return c * (RANKS - 1) * step + moved / interpolated(points, moved)


def interpolated(points, at):
    if at <= points[0][0] or len(points) == 1:
        return points[0][1]
    for (low, before), (high, after) in zip(points, points[1:]):
        if at <= high:
            return before * (after / before) ** (math.log(at / low) / math.log(high / low))
    return points[-1][1]


def quantity(text):
    number, unit = str(text).split()
    return float(number) * UNITS[unit]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/release/bin/prun")
    parser.add_argument("--cluster", type=pathlib.Path, help="default: calibrates first")
    parser.add_argument("--collectives", action="store_true", help="curves of collectives instead of steps")
    parser.add_argument("--rows", type=rows.names(PLANS), default=",".join(PLANS), help="of the steps: " + ", ".join(PLANS))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.prun = args.prun.resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cluster = args.cluster.resolve() if args.cluster else folder / "here.yaml"
        if not args.cluster:
            print(command(args.prun, "calibrate", "--nproc", RANKS, "--output", cluster), end="\n")
        return 1 if (curves(args, cluster) if args.collectives else steps(args, cluster, folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
