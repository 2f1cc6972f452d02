#!/usr/bin/env python3
"""This machine's own calibration against its own runs: `prun calibrate`, then each plan simulated and run in turn.

    tools/bench/calibrated.py [--prun PROGRAM]                  # steps: predicted beside measured
    tools/bench/calibrated.py --collectives                     # curves of collectives beside what the file predicts
    tools/bench/calibrated.py --cluster FILE                    # with a calibration that is there already
    tools/bench/calibrated.py --rows ddp,zero3 --rounds 3

Steps: a plan's default arguments at 2 ranks, median of steps and of rounds. Exposed communication is what a rank's
compute stream waits for, so the simulator's bubble counts, too: a run cannot tell whom a transfer waits for.
Bars: 10 % of the step, 10 points of exposed communication, 15 % of a collective from 4 MiB up.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PLANS = ["ddp", "zero3", "1f1b", "megatron"]
RANKS, STEPS, SKIPPED = 2, 14, 4


def command(*words):
    return subprocess.run([str(word) for word in words], cwd=TOP, check=True, capture_output=True, text=True, timeout=900).stdout


def measured(prun, plan, folder):
    """Median step in seconds and the part of it that communication is exposed."""
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
    times = {plan: [] for plan in args.rows.split(",")}
    for _ in range(args.rounds):  # in turn, so that a disturbance does not hit one plan alone
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/release/bin/prun")
    parser.add_argument("--cluster", type=pathlib.Path, help="default: calibrates first")
    parser.add_argument("--rows", default=",".join(PLANS), help="of the steps")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.prun = args.prun.resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cluster = args.cluster.resolve() if args.cluster else folder / "here.yaml"
        if not args.cluster:
            print(command(args.prun, "calibrate", "--nproc", RANKS, "--output", cluster), end="\n")
        return 1 if steps(args, cluster, folder) else 0


if __name__ == "__main__":
    sys.exit(main())
