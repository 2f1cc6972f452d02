#!/usr/bin/env python3
"""Collectives of prun, Open MPI and Gloo on this machine: all sides in turn, several rounds, medians; writes the table.

    tools/bench/collectives.py                            # everything, about an hour; interrupted, it goes on from there
    tools/bench/collectives.py --seconds 500              # as much as fits, the rest the next time
    tools/bench/collectives.py --quick --transports shm   # one round of a few sizes: for whoever tunes shm
    tools/bench/collectives.py --write                    # only the table, from the rows that are there

One process a side, number of ranks and round measures all sizes; rounds of different sides follow each other, so that
what disturbs the machine disturbs all. The peers' programs (tools/bench/peers) are built here and time by the rule of
`prun bench`. Needs g++, and of libopenmpi-dev, openmpi-bin, libgloo-dev what is to be compared.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

import collectives_table
from rows import File, add_option, failed

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
BUILD = TOP / "build/bench_peers"
K, M = 1 << 10, 1 << 20
SIZES = {"all_reduce": [4, K, 16 * K, 256 * K, 4 * M, 64 * M], "reduce_scatter": [64, K, 16 * K, 256 * K, 4 * M, 64 * M],
         "all_gather": [16 * K, 4 * M, 64 * M], "broadcast": [16 * K, 4 * M, 64 * M], "all_to_all": [16 * K, 4 * M, 64 * M]}
# Where the output lies, on both sides: as Gloo's fastest and most training loops have it.
PLACE = {"all_reduce": "in", "broadcast": "in"}

# name: (transport, its options)
OURS = {"shm": ("shm", ""), "socket": ("socket", ""), "socket over TCP": ("socket", "unix=0"), "ucx": ("ucx", "")}
# name: (options of mpirun, environment)
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]  # also without RDMA
OPEN_MPI = {
    "Open MPI": ([], {}),
    "Open MPI, no single copy": (["--mca", "btl_vader_single_copy_mechanism", "none"], {}),
    "Open MPI, yielding": (["--mca", "mpi_yield_when_idle", "1"], {}),
    "Open MPI over UCX": (UCX, {}),
    "Open MPI over UCX, no single copy": (UCX, {"UCX_TLS": "posix,sysv,self"}),
    "Open MPI over TCP": (["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"], {}),
}
# name: (algorithm, the ops that have it)
GLOO = {
    "Gloo": ("", ["reduce_scatter", "all_gather", "broadcast", "all_to_all"]),
    "Gloo ring": ("ring", ["all_reduce"]),
    "Gloo bcube": ("bcube", ["all_reduce"]),
    "Gloo halving-doubling": ("halving_doubling", ["all_reduce"]),
    "Gloo ring, chunked": ("ring_chunked", ["all_reduce"]),
}
OVER_UCX = [name for name in OPEN_MPI if "UCX" in name]
PEERS = {"shm": [n for n in OPEN_MPI if "TCP" not in n] + list(GLOO), "socket": ["Open MPI over TCP", *GLOO],
         "socket over TCP": ["Open MPI over TCP", *GLOO], "ucx": OVER_UCX}


def build_peers():
    """The programs that can be built: {program: path}."""
    BUILD.mkdir(parents=True, exist_ok=True)
    programs = {}
    for name, compiler, libraries in (("mpi", "mpicxx", []), ("gloo", "g++", ["-lgloo"]), ("copy", "g++", [])):
        source, program = HERE / f"peers/{name}.cc", BUILD / name
        newest = max(source.stat().st_mtime, (HERE / "peers/timing.h").stat().st_mtime)
        if not program.exists() or program.stat().st_mtime < newest:
            command = [compiler, "-std=c++20", "-O3", str(source), *libraries, "-o", str(program)]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{name}: not compared, it cannot be built: {error}", file=sys.stderr)
                continue
        programs[name] = program
    return programs


def in_network(congestion):
    """Words before a command that give it a loopback with this congestion control; root only."""
    if not congestion:
        return []
    script = f'ip link set lo up; echo {congestion} > /proc/sys/net/ipv4/tcp_congestion_control; exec "$@"'
    return ["unshare", "--net", "sh", "-ec", script, "sh"]


def command_of(args, programs, side, op, ranks):
    """(words, environment), or None where this side does not exist."""
    sizes = [size for size in SIZES.get(op, []) if not args.sizes or size in args.sizes]
    sizes = ",".join(map(str, sizes))
    place = PLACE.get(op, "out")
    if side in OURS:
        transport, options = OURS[side]
        words = [args.prun, "bench", op, "--nproc", ranks, "--transport", transport, "--transport-options", options, "--json"]
        if op == "idle":
            return words, {}
        if op == "one_core":
            words[2] = "all_reduce"
            return ["taskset", "-c", str(min(os.sched_getaffinity(0))), *words, "--bytes", "4,4M", "--place", "in",
                    "--budget", "0.1"], {}
        return [*words, "--bytes", sizes, "--place", place, "--budget", args.budget], {}
    if side in OPEN_MPI and "mpi" in programs:
        options, env = OPEN_MPI[side]
        crowded = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [*in_network(args.peer_congestion if "TCP" in side else ""), "mpirun", *root, *crowded, *options, "-np", ranks,
                programs["mpi"], op, sizes, args.budget, place], env
    if side in GLOO and "gloo" in programs and op in GLOO[side][1]:
        return [*in_network(args.peer_congestion), programs["gloo"], ranks, op, sizes, args.budget, place, GLOO[side][0]], {}
    if side in ("copy", "stream"):
        return [programs["copy"], ranks, side, sizes, args.budget], {}
    return None


def measure(words, env, seconds):
    """([row of JSON], error)"""
    clean = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    try:
        done = subprocess.run([str(w) for w in words], env={**clean, **env}, text=True, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return [], f"not finished after {seconds:.0f} s"
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if any(c.isalpha() for c in line)]
        return rows, f"exit {done.returncode}: {said[0] if said else 'without a word'}"
    return rows, None


def runs_of(args, programs):
    """[(op, ranks, side, round)] in the order in which they are measured."""
    sides = [s for s in OURS if s in args.transports]
    peers = [] if args.ours_only else list(dict.fromkeys(p for s in sides for p in PEERS[s]))
    runs = []
    for op in args.ops:
        for ranks in args.ranks:
            for turn in range(args.rounds):
                for side in [*sides, *peers, "copy", "stream"]:
                    if command_of(args, programs, side, op, ranks) is not None:
                        runs.append((op, ranks, side, turn))
                if op == "broadcast":  # one rank does not copy
                    runs += [("copy", ranks - 1, side, turn) for side in ("copy", "stream")]
    for op, all_ranks in (("idle", args.ranks), ("one_core", [8])):
        runs += [(op, ranks, side, 0) for ranks in all_ranks for side in sides if not args.quick]
    return runs


def machine(args):
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    commit = subprocess.run(["git", "-C", str(TOP), "rev-parse", "--short", "HEAD"], text=True, capture_output=True).stdout.strip()
    mpi = subprocess.run(["mpirun", "--version"], text=True, capture_output=True).stdout.splitlines()[:1] if shutil.which("mpirun") else []
    return {"machine": model[0] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release().split("-")[0],
            "congestion": congestion, "peer_congestion": args.peer_congestion or congestion, "commit": commit,
            "mpi": mpi[0] if mpi else "", "day": time.strftime("%Y-%m-%d"), "rounds": args.rounds, "budget": args.budget}


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def parse(argv):
    def words(text):
        return text.split(",")

    def numbers(text):
        return [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/release/bin/prun")
    parser.add_argument("--ops", type=words, default=list(SIZES), help="of: " + ", ".join(SIZES))
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8])
    parser.add_argument("--transports", type=words, help="of: " + ", ".join(OURS) + " (default: those that are built)")
    parser.add_argument("--sizes", type=numbers, default=[], help="bytes; only these of each op's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.15, help="seconds a size, side and round")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--quick", action="store_true", help="one round, 16 KiB to 4 MiB, 2 ranks unless asked; a fresh file of rows")
    parser.add_argument("--ours-only", action="store_true", help="without the peers")
    parser.add_argument("--peer-congestion", default="", help="TCP congestion control of the peers (root; default: the system's)")
    parser.add_argument("--rows", type=pathlib.Path, help="measured so far (default build/bench_peers/rows.jsonl)")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--output", type=pathlib.Path, help="default results/collectives.md; --quick: the screen")
    add_option(parser)
    args = parser.parse_args(argv)
    unknown = [op for op in args.ops if op not in SIZES]
    if unknown:
        parser.error(f"--ops: there is no {unknown[0]}; there are " + ", ".join(SIZES))
    if args.quick:
        args.rounds, args.budget = 1, min(args.budget, 0.05)
        args.sizes = args.sizes or [16 * K, 256 * K, 4 * M]
        args.ranks = args.ranks if "--ranks" in argv else [2]
    args.rows = args.rows or BUILD / ("quick.jsonl" if args.quick else "rows.jsonl")
    if args.output is None and not args.quick:
        args.output = HERE / "results/collectives.md"
    if not args.prun.exists():
        parser.error(f"{args.prun} is not there: tools/run builds it, or --prun names another")
    if args.transports is None:
        found = {p["name"] for p in json.loads(subprocess.check_output([args.prun, "plugins", "--json"]))["plugins"] if not p["error"]}
        args.transports = [name for name, (plugin, _) in OURS.items() if plugin in found]
    for name in args.transports:
        if name not in OURS:
            parser.error(f"--transports: there is no {name}; there are " + ", ".join(OURS))
    return args


def main():
    args = parse(sys.argv[1:])
    start = time.monotonic()
    programs = build_peers()
    if args.quick and not args.write:
        args.rows.unlink(missing_ok=True)
    rows = read_rows(args.rows)
    done = {tuple(row["run"]) for row in rows if "run" in row}
    todo = [] if args.write else [run for run in runs_of(args, programs) if run not in done]
    longest = 0
    with open(args.rows, "a") as out:
        def keep(row):
            rows.append(row)
            print(json.dumps(row), file=out, flush=True)
        if todo:
            keep({"machine": machine(args)})
        for i, (op, ranks, side, turn) in enumerate(todo):
            began = time.monotonic()
            if began - start + longest > args.seconds:
                print(f"{len(todo) - i} of {len(todo)} runs are left for the next time", file=sys.stderr)
                break
            words, env = command_of(args, programs, side, "broadcast" if op == "copy" else op, ranks)
            results, error = measure(words, env, 300)
            longest = max(longest, time.monotonic() - began)
            keep({"run": [op, ranks, side, turn], "rows": results, "error": error})
            print(f"{i + 1}/{len(todo)} {op} {ranks} ranks, {side}, round {turn + 1}: {error or 'ok'}", file=sys.stderr)
    text, short = collectives_table.write(rows, PEERS)
    lacking = [] if args.ours_only else [name for name in ("mpi", "gloo") if name not in programs]
    File(args.json).add(*collectives_table.as_rows(rows, PEERS, len(os.sched_getaffinity(0))),
                        *(failed(f"{', '.join(args.ops)} against {name}", f"peers/{name}.cc cannot be built") for name in lacking))
    if args.output:
        args.output.write_text(text)
        print(f"{args.output}: {short} bars do not hold")
    else:
        print(text)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
