#!/usr/bin/env python3
"""The nccl transport against NVIDIA's nccl-tests: the same collectives, sizes and GPUs, alternately, medians of rounds.

    tools/bench/nccl_tests.py --nccl-tests FOLDER --ranks 8     # FOLDER holds all_reduce_perf and the others

One rank per GPU. Both time consecutive calls on device memory: nccl-tests is one process with a thread per GPU, prun
has a process per rank. Exit status 1: prun is more than 2 % slower somewhere.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from rows import names

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = {"all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf", "reduce_scatter": "reduce_scatter_perf", "broadcast": "broadcast_perf",
            "reduce": "reduce_perf", "all_to_all": "alltoall_perf"}
BAR = 1.02


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{pathlib.Path(words[0]).name}: {(done.stderr.strip() or done.stdout.strip() or 'failed').splitlines()[-1]}")
    return done.stdout


def rows_of_nccl_tests(output):
    """Returns {bytes: µs out of place}. Columns: size count type redop root, then time algbw busbw #wrong twice."""
    rows = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) >= 9 and not line.lstrip().startswith("#") and words[0].isdigit():
            rows[int(words[0])] = float(words[5])
    return rows


def nccl_us(folder, op, ranks, sizes, iters):
    return rows_of_nccl_tests(run([folder / PROGRAMS[op], "-t", ranks, "-g", 1, "-b", sizes[0], "-e", sizes[-1], "-f", sizes[1] // sizes[0], "-n", iters,
                                   "-w", 5, "-c", 0, "-d", "float"]))


def prun_us(prun, op, ranks, sizes, iters):
    out = run([prun, "bench", op, "--nproc", ranks, "--transport", "nccl", "--memory", "cuda", "--bytes", ",".join(map(str, sizes)), "--iters", iters,
               "--warmup", 5, "--samples", 5, "--check", 0, "--place", "out", "--json"])
    return {row["bytes"]: row["time_us"] for row in map(json.loads, out.splitlines())}


def compare(args, op):
    sizes = [args.least * 16 ** i for i in range(20) if args.least * 16 ** i <= args.most]
    ours, theirs = {}, {}
    for _ in range(args.rounds):
        for found, us in ((ours, prun_us(args.prun, op, args.ranks, sizes, args.iters)), (theirs, nccl_us(args.nccl_tests, op, args.ranks, sizes, args.iters))):
            for size, value in us.items():
                found.setdefault(size, []).append(value)
    rows = []
    for size in sorted(ours.keys() & theirs.keys()):  # nccl-tests rounds some sizes to whole elements per rank
        rows.append({"op": op, "bytes": size, "prun_us": statistics.median(ours[size]), "nccl_us": statistics.median(theirs[size])})
    if not rows:
        raise RuntimeError(f"{op}: no size in common: {sorted(ours)} and {sorted(theirs)}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/gpu/bin/prun")
    parser.add_argument("--nccl-tests", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ops", type=names(PROGRAMS), default="all_reduce,all_gather,reduce_scatter,broadcast", help="of: " + ", ".join(PROGRAMS))
    parser.add_argument("--least", type=int, default=4096, help="bytes")
    parser.add_argument("--most", type=int, default=256 << 20, help="bytes; sizes grow by 16")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="write the rows to this file, too")
    args = parser.parse_args()
    for op in args.ops:
        if not (args.nccl_tests / PROGRAMS[op]).exists():
            parser.error(f"{args.nccl_tests / PROGRAMS[op]} is not there: build nccl-tests, and name its folder with --nccl-tests")
    rows = []
    print(f"{'collective':<16}{'bytes':>12}{'prun µs':>12}{'nccl-tests µs':>16}{'ratio':>8}   bar {BAR}")
    try:
        for op in args.ops:
            for row in compare(args, op):
                rows.append(row)
                print(f"{op:<16}{row['bytes']:>12}{row['prun_us']:>12.1f}{row['nccl_us']:>16.1f}{row['prun_us'] / row['nccl_us']:>8.3f}", flush=True)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps({"ranks": args.ranks, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["prun_us"] > BAR * row["nccl_us"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
