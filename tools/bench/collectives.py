#!/usr/bin/env python3
"""Collectives of prun, Open MPI and Gloo on this machine: all sides alternately, several rounds, medians; one row per
size.

    tools/bench/collectives.py                            # everything, about an hour
    tools/bench/collectives.py --quick --transports shm   # one round of a few sizes, for tuning shm

One process per side, number of ranks and round measures all sizes. Rounds of different sides alternate, so that a
disturbance affects all. The peers' programs (tools/bench/peers) are built here and follow the timing rule of `prun
bench`. Needs g++, and libopenmpi-dev, openmpi-bin, libgloo-dev for the peers to compare with.

A row's limit is the time in which all ranks concurrently copy the least bytes that the collective must read and write,
measured in the same rounds (peers/copy.cc): all_reduce, all_gather and all_to_all read and write each rank's bytes
once, reduce_scatter writes 1/n of the bytes that it reads, and broadcast copies on all ranks but one.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import rows

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
BUILD = TOP / "build/bench_peers"
K, M = 1 << 10, 1 << 20
SIZES = {"all_reduce": [4, K, 16 * K, 256 * K, 4 * M, 64 * M], "reduce_scatter": [64, K, 16 * K, 256 * K, 4 * M, 64 * M],
         "all_gather": [16 * K, 4 * M, 64 * M], "broadcast": [16 * K, 4 * M, 64 * M], "all_to_all": [16 * K, 4 * M, 64 * M]}
# In-place ops, on both sides: Gloo is fastest that way, and most training loops use it.
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
# name: (algorithm, its ops)
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
    """Builds the possible programs and returns {program: path}."""
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
    """Returns a command prefix for a loopback with this congestion control; root only."""
    if not congestion:
        return []
    script = f'ip link set lo up; echo {congestion} > /proc/sys/net/ipv4/tcp_congestion_control; exec "$@"'
    return ["unshare", "--net", "sh", "-ec", script, "sh"]


def command_of(args, programs, side, op, ranks):
    """Returns (command, environment), or None if this side does not exist."""
    sizes = ",".join(str(size) for size in SIZES[op] if not args.sizes or size in args.sizes)
    place = PLACE.get(op, "out")
    if side in OURS:
        transport, options = OURS[side]
        return [args.prun, "bench", op, "--nproc", ranks, "--transport", transport, "--transport-options", options, "--json",
                "--bytes", sizes, "--place", place, "--budget", args.budget], {}
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
    """Returns ([JSON rows], error)."""
    clean = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    try:
        done = subprocess.run([str(w) for w in words], env={**clean, **env}, text=True, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return [], f"not finished after {seconds:.0f} s"
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if any(c.isalpha() for c in line)]
        return found, f"exit {done.returncode}: {said[0] if said else 'without a word'}"
    return found, None


def runs_of(args, programs):
    """Returns [(op, ranks, side, command, environment)] in the order of measurement."""
    sides = [s for s in OURS if s in args.transports]
    peers = [] if args.ours_only else list(dict.fromkeys(p for s in sides for p in PEERS[s]))
    for op in args.ops:
        for ranks in args.ranks:
            for _ in range(args.rounds):
                for side in [*sides, *peers, "copy", "stream"]:
                    if (command := command_of(args, programs, side, op, ranks)) is not None:
                        yield op, ranks, side, *command
                if op == "broadcast":  # one rank copies nothing
                    for side in ("copy", "stream"):
                        yield "copy", ranks - 1, side, *command_of(args, programs, side, op, ranks - 1)


def size_text(size):
    return f"{size // M} MiB" if size >= M else f"{size // K} KiB" if size >= K else f"{size} B"


def bound(times, op, ranks, size):
    """Returns the least time that copying allows, or None."""
    def copies(op_of_run, n):
        return min((times[op_of_run, n, side][size] for side in ("copy", "stream") if size in times.get((op_of_run, n, side), {})), default=None)
    if op == "broadcast":
        return copies("copy", ranks - 1)
    whole = copies(op, ranks)
    return whole and (whole * (1 + 1 / ranks) / 2 if op == "reduce_scatter" else whole)


def judge(transport, op, ranks, cores, size, ours, peers, least):
    """Returns (text of the bar, whether it is reached), or (None, None). `peers`: {name: µs}."""
    if not peers:
        return None, None
    best = min(peers.values())
    ratio = best / ours
    reduces = op in ("all_reduce", "reduce_scatter")
    if transport == "ucx":
        return ("≥ 0.95", ratio >= 0.95) if size >= 4 * M else (None, None)
    if transport.startswith("socket") and reduces:
        gloo = min((t for name, t in peers.items() if name.startswith("Gloo")), default=None)
        mpi = min((t for name, t in peers.items() if name.startswith("Open MPI")), default=None)
        wanted = 2 if size <= 4 * M else 1.4
        held = (gloo is None or gloo / ours >= wanted) and (mpi is None or mpi / ours >= 1)
        return f"Gloo ≥ {wanted}, MPI ≥ 1", held
    if not reduces:
        if size >= 64 * M and transport == "shm" and least:
            return "≥ 1, of bound ≥ 70 %", ratio >= 1 and least / ours >= 0.7
        return "≥ 1", ratio >= 1
    if size >= 4 * M:
        wanted = 2.5 if ranks <= 2 else 3
        return f"≥ {wanted}", ratio >= wanted
    if size >= 256 * K:
        return "≥ 1.2", ratio >= 1.2
    slack = 0.2 if ranks <= cores else 5
    return f"≤ 1.2 × or + {slack} µs", ours <= 1.2 * best or ours <= best + slack


def rows_of(times, errors, peers_of, cores):
    """`times`: {(op, ranks, side): {bytes: µs}}. Errors of a peer's setting are omitted if another of its settings is
    faster.
    """
    for (op, ranks, side), sizes in sorted(times.items()):
        for size, ours in sorted(sizes.items()) if side in peers_of else ():
            theirs = {p: times[op, ranks, p][size] for p in peers_of[side] if size in times.get((op, ranks, p), {})}
            best, least = min(theirs, key=theirs.get, default=None), bound(times, op, ranks, size)
            bar, holds = judge(side, op, ranks, cores, size, ours, theirs, least)
            row = {"what": f"{op}, {ranks} ranks, {size_text(size)}, {side}", "unit": "µs", "prun": ours, "peer": best, "peers": theirs.get(best),
                   "ratio": theirs[best] / ours if theirs else None, "bar": bar, "reached": holds}
            yield {**row, "limit": f"copies {rows.number(least)} µs", "share": least / ours} if least else row
    for (op, ranks, side), why in errors.items():
        if side in peers_of and (op, ranks, side) not in times:
            yield rows.failed(f"{op}, {ranks} ranks, {side}", why)


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
    parser.add_argument("--quick", action="store_true", help="one round, 16 KiB to 4 MiB, 2 ranks unless asked")
    parser.add_argument("--ours-only", action="store_true", help="without the peers")
    parser.add_argument("--peer-congestion", default="", help="TCP congestion control of the peers (root; default: the system's)")
    rows.add_option(parser)
    args = parser.parse_args(argv)
    unknown = [op for op in args.ops if op not in SIZES]
    if unknown:
        parser.error(f"--ops: there is no {unknown[0]}; there are " + ", ".join(SIZES))
    if args.quick:
        args.rounds, args.budget = 1, min(args.budget, 0.05)
        args.sizes = args.sizes or [16 * K, 256 * K, 4 * M]
        args.ranks = args.ranks if "--ranks" in argv else [2]
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
    programs = build_peers()
    runs, times, errors = list(runs_of(args, programs)), {}, {}
    for i, (op, ranks, side, words, env) in enumerate(runs):
        results, error = measure(words, env, 300)
        for result in results:
            times.setdefault((op, ranks, side), {}).setdefault(result["bytes"], []).append(result["time_us"])
        if error:
            errors[op, ranks, side] = error
        print(f"{i + 1}/{len(runs)} {op} {ranks} ranks, {side}: {error or 'ok'}", file=sys.stderr)
    out = rows.File(args.json)
    medians = {key: {size: statistics.median(values) for size, values in sizes.items()} for key, sizes in times.items()}
    out.tell(*rows_of(medians, errors, PEERS, len(os.sched_getaffinity(0))))
    for name in () if args.ours_only else ("mpi", "gloo"):
        if name not in programs:
            out.tell(rows.failed(f"{', '.join(args.ops)} against {name}", f"peers/{name}.cc cannot be built"))
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
