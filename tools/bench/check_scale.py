#!/usr/bin/env python3
"""What `prun check` costs at sizes: CPU time, peak memory and time by pass, each size beside its bar, as results/check_scale.md.

    tools/bench/check_scale.py                      # all sizes, to standard output
    tools/bench/check_scale.py --write              # into results/check_scale.md
    tools/bench/check_scale.py --only zero3         # sizes whose name has this in it
    tools/bench/check_scale.py --prun build/ci/bin/prun
"""
import argparse
import datetime
import os
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def pipeline(micro, layers):
    return "1f1b", 16, {"pp": 16, "layers": layers, "micro": micro, "batch": micro, "width": 64}


# name: (plan, ranks, settings, bars: seconds of CPU, MB)
SIZES = {
    "1f1b, 16 stages, 64 microbatches, 16 layers": (*pipeline(64, 16), None, None),
    "1f1b, 16 stages, 512 microbatches, 16 layers": (*pipeline(512, 16), None, None),
    "1f1b, 16 stages, 64 microbatches, 96 layers": (*pipeline(64, 96), None, None),
    "1f1b, 16 stages, 512 microbatches, 96 layers": (*pipeline(512, 96), 2, 300),
    "zero3, 1,000 layers": ("zero3", 8, {"layers": 1000, "width": 32}, None, None),
    "zero3, 4,000 layers": ("zero3", 8, {"layers": 4000, "width": 32}, 2, None),
    "llama 405B, 16,384 ranks, 128 microbatches": (HERE / "llama405b.lua", 16384, {}, 3, None),
}
PASSES = ["script", "step", "workspace", "memory", "verify"]  # what is worth a column; the others together


def measured(prun, plan, ranks, settings):
    """(CPU seconds, peak MB, seconds by pass) of one check, its script's process included."""
    path = plan if isinstance(plan, pathlib.Path) else TOP / f"plans/{plan}.lua"
    words = [str(prun), "check", str(path), "--nproc", str(ranks), "--time-passes"]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors.fileno(), 2)
            os.execv(words[0], words)
        _, status, usage = os.wait4(child, 0)
        errors.seek(0)
        text = errors.read()
    if status != 0:
        raise SystemExit(f"{' '.join(words)}\n{text}")
    passes = {name: float(time) * SECONDS[unit] for name, time, unit in re.findall(r"^(\w+) +([\d.]+) (\w+)$", text, re.M)}
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, passes


def row(name, prun):
    plan, ranks, settings, most_seconds, most_mb = SIZES[name]
    cpu, mb, passes = measured(prun, plan, ranks, settings)
    others = sum(time for one, time in passes.items() if one not in PASSES)
    bars = [f"{most_seconds} s" if most_seconds else "", f"{most_mb} MB" if most_mb else ""]
    holds = (most_seconds is None or cpu <= most_seconds) and (most_mb is None or mb <= most_mb)
    bar = ", ".join(filter(None, bars)) + ("" if not any(bars) else ": yes" if holds else ": **no**")
    cells = [name, f"{cpu:.2f} s", f"{mb:,.0f} MB", bar, *(f"{passes.get(one, 0):.2f}" for one in PASSES), f"{others:.2f}"]
    return "| " + " | ".join(cells) + " |"


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "an unknown processor")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/release/bin/prun")
    parser.add_argument("--only", default="", help="sizes whose name has this in it")
    parser.add_argument("--write", action="store_true", help="into results/check_scale.md instead of standard output")
    args = parser.parse_args()
    names = [name for name in SIZES if args.only in name]
    if not names:
        parser.error(f"no size has '{args.only}' in its name; there are: " + "; ".join(SIZES))
    lines = [
        "# What a check costs",
        "",
        f"By `tools/bench/check_scale.py --write` on {os.cpu_count()} cores of {processor()},",
        f"{datetime.date.today()}. CPU and peak memory are those of the whole `prun check` and the script's process;",
        "seconds by pass are of the wall clock.",
        "",
        "| size | CPU | memory | bar | " + " | ".join(PASSES) + " | other passes |",
        "|---" * (5 + len(PASSES)) + "|",
    ]
    if not args.write:
        print("\n".join(lines), flush=True)
    for name in names:
        lines.append(row(name, args.prun.resolve()))
        if not args.write:
            print(lines[-1], flush=True)
    if args.write:
        (HERE / "results/check_scale.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
