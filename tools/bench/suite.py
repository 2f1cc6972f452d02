#!/usr/bin/env python3
"""All benchmarks of CPUs and transports in one run, as one table; excerpts of it are in tools/bench/results.

    tools/bench/suite.py --torch PYTHON                   # everything: hours; an interrupted run resumes
    tools/bench/suite.py --parts scale,steps --rounds 1   # some parts; of: limits, products, kernels, overlap,
                                                          # collectives, line, steps, gpt2, scale
    tools/bench/suite.py --only zero3 --fresh             # jobs with this in their names, measured again
    tools/bench/suite.py --seconds 500                    # as many jobs as fit, the rest the next time
    tools/bench/suite.py --list                           # the jobs, and which are done
    tools/bench/suite.py --write                          # only the table, from existing results

A job is one command of another benchmark, whose rows (rows.py) are stored in --state as soon as it ends. The table has
one line per row, with its bar, reached or **missed**, and its limit, measured in the same run: FMAs in registers and
copies in memory. Jobs that did not run are listed with the reason and count as missed. Lines of an existing table for
this kind of machine remain unless they are measured again.

Needs tools/run once, `cmake --preset bench && ninja -C build/bench product_bench kernel_bench`, and the benchmarks'
packages: libopenblas0-pthread libblis4-pthread libopenmpi-dev openmpi-bin libgloo-dev for the peers that are not
Python.
Exit status 1: a bar is missed; 2: a job did not run.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

import gpt2_cpu
import products
import rows
import scale
import suite_table
import train_step

HERE = pathlib.Path(__file__).resolve().parent
BENCH = rows.TOP / "build/bench/bin"
COLLECTIVES = {"shm": "shm", "AF_UNIX": "socket", "TCP": "socket over TCP"}
OPS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]


@dataclasses.dataclass
class Job:
    part: str
    name: str
    words: list
    lacks: str = ""  # reason why it cannot run here


def cpu_flags():
    return next((line.split() for line in open("/proc/cpuinfo") if line.startswith("flags")), [])


def instruction_set():
    flags = cpu_flags()
    for flag, name in (("amx_bf16", "amx"), ("avx512_bf16", "avx512-bf16"), ("avx512f", "avx512"), ("avx2", "avx2")):
        if flag in flags:
            return name
    return platform.machine()


def kind_of_machine():
    """Returns a file name: Intel(R) Xeon(R) Processor with AMX on 2 cores is intel-xeon-amx-2-cores."""
    name = re.sub(r"\(R\)|\(TM\)|Processor|CPU|@.*|\d+-Core", " ", rows.cpu_name())
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{words}-{instruction_set()}-{len(os.sched_getaffinity(0))}-cores"


def lacking(*programs):
    return next((f"{program.relative_to(rows.TOP)} is not built (cmake --preset bench)" for program in programs if not program.exists()), "")


def sets_of_instructions():
    """Returns options of benchmarks: the CPU's whole instruction set, and AVX2 alone if that is less."""
    return [[], ["--isa", "AVX2"]] if instruction_set().startswith(("avx512", "amx")) else [[]]


def torch_of(args):
    return ["--torch", args.torch] if args.torch else []


def products_jobs(args):
    sets = [(isa, ["f32", "bf16"]) for isa in sets_of_instructions()]
    if instruction_set() in ("avx512-bf16", "amx"):
        sets.append((["--isa", "AVX512"], ["bf16"]))
    for isa, types in sets:
        for dtype in types:
            for shapes in products.SHAPES:
                name = " ".join(["products", shapes, dtype, *isa[1:]])
                yield Job("products", name, ["products.py", *torch_of(args), *isa, "--types", dtype, "--shapes", shapes, "--rounds", args.rounds],
                          lacking(BENCH / "product_bench"))


def jobs_of(args):
    prun, rounds, need_torch = ["--prun", args.prun], ["--rounds", args.rounds], "" if args.torch else "no PyTorch: --torch PYTHON"
    yield Job("limits", "limits", ["limits.py"], lacking(BENCH / "product_bench"))
    yield from products_jobs(args)
    yield Job("kernels", "kernels", ["kernels.py", *torch_of(args)], lacking(BENCH / "product_bench", BENCH / "kernel_bench"))
    yield Job("kernels", "attend", ["attend.py", *rounds], lacking(BENCH / "attend_bench"))
    for transport in ("shm", "socket"):
        yield Job("overlap", f"overlap {transport}", ["figures.py", "overlap", *prun, "--transport", transport])
    for name, transport in COLLECTIVES.items():
        for op in OPS:
            yield Job("collectives", f"collectives {name} {op}", ["collectives.py", *prun, *rounds, "--transports", transport, "--ops", op])
    yield Job("line", "line", ["line.py", *prun], "" if os.geteuid() == 0 and os.path.exists("/dev/net/tun") else "needs root and /dev/net/tun")
    yield Job("steps", "bf16 against f32", ["figures.py", "bf16", *prun])
    for isa in sets_of_instructions():
        for row in train_step.ROWS:
            yield Job("steps", " ".join(["step", row, *isa[1:]]), ["train_step.py", *prun, *rounds, *isa, "--torch", args.torch, "--rows", row], need_torch)
    for batch in gpt2_cpu.BATCHES:
        yield Job("gpt2", f"gpt2 {batch}", ["gpt2_cpu.py", *prun, *rounds, *torch_of(args), "--batches", batch])
        if not args.torch:
            yield Job("gpt2", f"gpt2 {batch} against PyTorch", [], need_torch)
    for figure in scale.FIGURES:
        yield Job("scale", f"scale {figure}", ["scale.py", figure, *prun, *(rounds if figure == "train" else [])])


def run(job, seconds):
    """Runs one command and returns ({"rows": ..}, error); a benchmark exits with 1 if a bar is missed."""
    if job.lacks:
        return [], job.lacks
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as kept:
        words = [sys.executable, HERE / job.words[0], *job.words[1:], "--json", kept.name]
        try:
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return rows.read(kept.name), f"no end after {seconds:.0f} s"
        found = rows.read(kept.name)
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    if done.returncode not in (0, 1) or not found:
        return found, f"exit {done.returncode}: {said[-1] if said else 'without a word'}"
    return found, None


def is_done(job, done):
    """Whether the job is complete with the requested peers and rounds; others are other measurements."""
    entry = done.get(job.name)
    whole = entry is not None and not entry["error"] and not any("error" in row for row in entry["rows"])
    return whole and entry["words"] == list(map(str, job.words))


def machine(args):
    commit = subprocess.run(["git", "-C", str(rows.TOP), "describe", "--always", "--dirty"], text=True, capture_output=True).stdout.strip()
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) / 2**20
    caches = subprocess.run(["lscpu", "-B", "-C=NAME,ONE-SIZE"], text=True, capture_output=True).stdout.split("\n")[1:]
    sizes = [f"{name} {int(size) >> 10:,} KiB" for name, size in (line.split() for line in caches if line.strip())]
    return {"cpu": rows.cpu_name(), "isa": instruction_set(), "cores": len(os.sched_getaffinity(0)), "caches": ", ".join(sizes), "memory_gib": memory,
            "kernel": platform.release().split("-")[0], "day": time.strftime("%Y-%m-%d"), "commit": commit, "rounds": args.rounds}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=rows.TOP / "build/release/bin/prun")
    parser.add_argument("--torch", default="", metavar="PYTHON", help="Python with PyTorch")
    parser.add_argument("--parts", default=",".join(suite_table.PARTS), help="of: " + ", ".join(suite_table.PARTS))
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs with this in their names")
    parser.add_argument("--rounds", type=int, default=3, help="of each bench")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no job after this long")
    parser.add_argument("--job-seconds", type=float, default=3600, help="the longest that a job may take")
    parser.add_argument("--state", type=pathlib.Path, default=rows.TOP / "build/bench_suite/jobs.jsonl", help="jobs that are done")
    parser.add_argument("--fresh", action="store_true", help="measure the jobs asked for again")
    parser.add_argument("--list", action="store_true", help="say which jobs there are, and end")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--output", type=pathlib.Path, help="default: build/bench/KIND-OF-MACHINE.md")
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    for part in args.parts:
        if part not in suite_table.PARTS:
            parser.error(f"--parts: there is no {part}; there are " + ", ".join(suite_table.PARTS))
    args.prun, args.state = args.prun.resolve(), args.state.resolve()
    if not args.prun.exists():
        parser.error(f"{args.prun} is not there: tools/run builds it, or --prun names another")
    args.output = args.output or rows.TOP / "build/bench" / f"{kind_of_machine()}.md"
    return args


def main():
    args = parse()
    start = time.monotonic()
    jobs = list(jobs_of(args))
    asked = [job for job in jobs if job.part in args.parts and args.only in job.name]
    done = {entry["job"]: entry for entry in rows.read(args.state)}  # the last entry of a name counts
    todo = [] if args.write else [job for job in asked if args.fresh or not is_done(job, done)]
    if args.list:
        for job in asked:
            print(f"{job.name:<40}{'to do' if job in todo else 'done'}{'; ' + job.lacks if job.lacks else ''}")
        return 0
    args.state.parent.mkdir(parents=True, exist_ok=True)
    with open(args.state, "a") as state:
        for i, job in enumerate(todo):
            if time.monotonic() - start > args.seconds:
                print(f"{len(todo) - i} of {len(todo)} jobs are left for the next time", file=sys.stderr)
                break
            began = time.monotonic()
            found, error = run(job, args.job_seconds)
            entry = {"job": job.name, "part": job.part, "words": list(map(str, job.words)), "rows": found, "error": error, "machine": machine(args)}
            print(json.dumps(entry, ensure_ascii=False), file=state, flush=True)
            done[job.name] = entry
            missed = sum(row["reached"] is False for row in found)
            print(f"{i + 1}/{len(todo)} {job.name}, {time.monotonic() - began:.0f} s: {error or f'{len(found)} rows, {missed} missed'}", file=sys.stderr)
    entries = [done[job.name] for job in jobs if job.name in done]
    table = suite_table.read(args.output.read_text()) if args.output.exists() else suite_table.Table()
    if not table.is_of(machine(args)):
        table = suite_table.Table()
    undone = [job.name for job in jobs if job.name not in done and (table.undone is None or job.name in table.undone)]
    text, missed, failed = suite_table.write(entries, undone, table)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text)
    print(f"{args.output}: {missed} bars missed, {failed} jobs did not run")
    return 2 if failed else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
