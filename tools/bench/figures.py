#!/usr/bin/env python3
"""Figures of prun alone, each with its bar; exits with 1 if one is missed.

    tools/bench/figures.py                      # all
    tools/bench/figures.py startup memory       # some
    tools/bench/figures.py overlap --transport socket --nproc 2

bf16     a gpt step under ddp in bf16, relative to our own f32, both alternately
check    `prun check` of a 96-layer gpt under zero3 on 1,024 ranks; CPU time of checks of long and deep plans
memory   memory of zero3 ranks (largest proportional set size) relative to the prediction plus an idle rank, which
         trains a model of 72 parameters
prove    `prun check --prove` of each shipped plan; the slowest
overlap  exposed communication of zero3 with prefetch 1, as a share of all communication, and the same for transfers
         alone, without waits for ranks that are late at a collective; a wide gpt with a long batch
recorder the flight recorder's share of a gpt step: its ops times the executor's whole overhead per op (exec_bench)
startup  from command to its end, with one step of a small plan
"""
import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import exposed
import rows
import steady
from rows import TOP

PROGRAM = TOP / "build/release/bin/prun"  # --prun
MIB = {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
IDLE = TOP / "tools/bench/idle.lua"  # a plan

# name, plan, ranks, bar in seconds of CPU time, settings; --time-passes shows the passes
CHECKS = [("1f1b, 16 stages, 512 microbatches, 96 layers", TOP / "plans/1f1b.lua", 16, 2, {"pp": 16, "layers": 96, "micro": 512, "batch": 512, "width": 64}),
          ("zero3, 4,000 layers", TOP / "plans/zero3.lua", 8, 2, {"layers": 4000, "width": 32}),
          ("llama 405B, 16,384 ranks, 128 microbatches", TOP / "tools/bench/llama405b.lua", 16384, 3, {})]


def prun(*words, **settings):
    """Returns the completed process and its wall time."""
    words = [PROGRAM, *words]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    begin = time.perf_counter()
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
    return done, time.perf_counter() - begin


def steps(plan, nproc, *words, skip, **settings):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
        prun(TOP / f"plans/{plan}.lua", "--nproc", nproc, *words, "--metrics", metrics.name, **settings)
        return [json.loads(line) for line in open(metrics.name)][skip:]


def median_of(rows, name):
    return statistics.median(row[name] for row in rows)


def bf16(args):
    nproc = args.nproc or 2

    def one_round(look):
        times = []
        for dtype in ("f32", "bf16"):
            times.append(median_of(steps("ddp", nproc, skip=3, batch=8 * nproc, steps=13, dtype=dtype), "time_s") * 1e3)
            look()
        return times

    times, share = steady.measure(3, one_round)
    single, half = (statistics.median(column) for column in zip(*times))
    multiplies_bf16 = any(flag in open("/proc/cpuinfo").read() for flag in ("avx512_bf16", "amx_bf16"))
    return rows.compared(f"gpt, {nproc} ranks, bf16 against f32", "ms", half, "f32", single, 2 if multiplies_bf16 else 1,
                         **steady.disturbed(share))


def check(args):
    nproc = args.nproc or 1024
    times = [prun("check", TOP / "plans/zero3.lua", "--nproc", nproc, layers=96, width=768, heads=12, context=128, batch=nproc)[1]
             for _ in range(7)]
    median = statistics.median(times)
    found = [rows.at_most(f"prun check, 96 layers, {nproc:,} ranks, median", "ms", median * 1e3, 1000)]
    for what, plan, ranks, bar, settings in CHECKS:
        found.append(rows.at_most(f"prun check, {what}", "s", cpu_of("check", plan, "--nproc", ranks, **settings), bar))
    return found


def memory(args):
    nproc = args.nproc or 8

    def taken(plan, **settings):
        """Returns (predicted, used) in MiB, from the summary."""
        text = prun(plan, "--nproc", nproc, **settings)[0].stdout
        line = next(line for line in text.splitlines() if line.startswith("memory"))
        sizes = [float(n) * MIB[unit] for n, unit in re.findall(r"([\d.]+) (B|KiB|MiB|GiB)", line)]
        return sizes[0], max(sizes[1:])
    _, base = taken(IDLE)
    predicted, most = taken(TOP / "plans/zero3.lua", steps=3, batch=8 * nproc)
    over = most - predicted - base
    return rows.at_most(f"zero3 on {nproc} ranks: predicted {predicted:.1f} MiB, an idle rank {base:.1f} MiB, taken {most:.1f} MiB: more by", "MiB",
                        over, 64)


def overlap(args):
    nproc = args.nproc or 2
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder, "trace.json")
        taken = steps("zero3", nproc, "--transport", args.transport, "--trace", trace, skip=2, steps=12, layers=4, width=512, heads=8, context=256,
                      batch=32)
        parts = exposed.read(trace, 2)
    share = statistics.median(step["exposed_comm_s"] / step["comm_s"] for step in taken)
    what = f"zero3, {nproc} ranks, {args.transport}: "
    taken_ms = f"step {median_of(taken, 'time_s') * 1e3:.0f} ms, communication {median_of(taken, 'comm_s') * 1e3:.0f} ms"
    return [rows.at_most(f"{what}exposed of communication", "%", share * 100, 3, limit=taken_ms),
            rows.at_most(f"{what}exposed of transfers", "%", parts["exposed_transfer_s"] / parts["transfer_s"] * 100, 3,
                         limit=f"transfers {parts['transfer_s'] * 1e3:.1f} ms a step, the rest waits for ranks that compute")]


def prove(args):
    ranks = {"3d": 8, "single": 1, "megatron": 4, "fsdp": 4}
    plans = [TOP / "plans" / f"{name}.lua" for name in sorted(path.stem for path in (TOP / "plans").glob("*.lua"))]
    plans += sorted((TOP / "plans/custom").glob("*.lua"))
    times = {plan.stem: statistics.median(prun("check", plan, "--prove", "--nproc", args.nproc or ranks.get(plan.stem, 2))[1]
                                          for _ in range(3)) for plan in plans}
    slowest = max(times, key=times.get)
    return rows.at_most(f"prun check --prove, {len(times)} plans: {sum(times.values()):.1f} s, slowest {slowest}", "ms", times[slowest] * 1e3, 2000)


def cpu_of(*words, **settings):
    """Returns the CPU seconds of a run and its ranks."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    prun(*words, **settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def recorder(args):
    """The executor's whole overhead per op (clock, event, stream state) bounds that of recording it. It is measured in
    CPU time, which hardly depends on the load of the machine.
    """
    bench = subprocess.run([TOP / "build/bench/bin/exec_bench", "--benchmark_filter=one_stream", "--benchmark_format=json"],
                           check=True, capture_output=True, text=True)
    found = json.loads(bench.stdout)["benchmarks"][0]
    op_s = found["time_per_op"] * found["cpu_time"] / found["real_time"]
    plan, ranks = TOP / "plans/ddp.lua", args.nproc or 2
    with tempfile.TemporaryDirectory() as folder:
        trace, metrics = pathlib.Path(folder, "trace.json"), pathlib.Path(folder, "metrics.jsonl")
        prun(plan, "--nproc", ranks, "--trace", trace, "--metrics", metrics, steps=8)
        events = json.loads(trace.read_text())["traceEvents"]
        steps = len(metrics.read_text().splitlines())
    ops = sum(1 for event in events if event.get("pid") == 0 and "op" in event.get("args", {})) / steps
    step_s = (cpu_of(plan, "--nproc", ranks, steps=12) - cpu_of(plan, "--nproc", ranks, steps=2)) / 10 / ranks
    share = ops * op_s / step_s
    return rows.at_most(f"flight recorder: at most {op_s * 1e9:.0f} ns of processor time for each of {ops:.0f} ops of a step of "
                        f"{step_s * 1e3:.0f} ms", "%", share * 100, 1)


def startup(args):
    nproc = args.nproc or 8
    times = [prun(TOP / "plans/zero3.lua", "--nproc", nproc, steps=1, layers=2, width=64, context=32, batch=nproc)[1] for _ in range(11)]
    median = statistics.median(times)
    return rows.at_most(f"{nproc} ranks, command to its end after 1 step: least {min(times) * 1e3:.0f} ms, median", "ms", median * 1e3, 500)


FIGURES = {figure.__name__: figure for figure in (bf16, check, memory, overlap, prove, recorder, startup)}


def main():
    global PROGRAM
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="of: " + ", ".join(FIGURES))
    parser.add_argument("--nproc", type=int, help="default: each figure's own")
    parser.add_argument("--transport", default="socket", help="of overlap")
    parser.add_argument("--prun", type=pathlib.Path, default=PROGRAM)
    rows.add_option(parser)
    args = parser.parse_args()
    PROGRAM, out = args.prun, rows.File(args.json)
    for name in args.figures or FIGURES:
        if name not in FIGURES:
            parser.error(f"there is no figure {name}; there are " + ", ".join(FIGURES))
        found = FIGURES[name](args)
        out.tell(*(found if isinstance(found, list) else [found]))
    return 1 if out.missed else 0


if __name__ == "__main__":
    sys.exit(main())
