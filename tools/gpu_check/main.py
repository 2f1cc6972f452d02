"""The command line of `tools/gpu-check`. run.py implements the run, build.py and pack.py the package, keep.py the kept
results."""
import argparse
import pathlib
import resource
import signal
import sys

from gpu_check import (
    bad_input,
    build,
    conform,
    doctor,
    generation,
    gpt2,
    keep,
    kernels,
    models,
    nccl,
    needs,
    ops,
    pack,
    parity,
    pytorch,
    sanitizers,
    trace,
)
from gpu_check.run import USAGE, Run

# Ordered by value, because time may run out: does it start, is it correct, how fast is it, where is the time spent,
# what else is wrong.
PARTS = [build.PART, doctor.PART, ops.PART, parity.FIRST_PART, parity.REST, models.PART, gpt2.PART, pytorch.PART, kernels.PART, gpt2.VARIANTS_PART, generation.PART,
         nccl.SHARED, bad_input.PART, *sanitizers.PARTS[:2], conform.DEVICE, conform.BITS, trace.PART, kernels.OTHERS, kernels.FIGURES, sanitizers.PARTS[2], conform.NCCL,
         nccl.BESIDE]
TOP = pathlib.Path(__file__).resolve().parent.parent.parent
LEAST_BUDGET = 60  # seconds; with less, not even the doctor and one op test would finish

HELP = """Tries prun on this machine's GPUs and writes one report (tools/gpu_check/README.md). Where prun can be built, it is built first.

parts, in this order:
"""


def seconds(text):
    value = float(text)
    if not value >= LEAST_BUDGET:
        raise argparse.ArgumentTypeError(f"{text} s are too few: the first part alone may take {LEAST_BUDGET} s; --budget 150 is the short run, 540 the long one")
    return value


def parser_of():
    text = HELP + "\n".join(f"  {part.name:<14} {part.title}" for part in PARTS)
    parser = argparse.ArgumentParser(prog="tools/gpu-check", description=text, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="exit status: 0 nothing failed, 1 a check failed, 2 usage, or no GPU can be reached, "
                                            "75 the budget was spent first: the same command goes on")
    parser.add_argument("--only", metavar="PARTS", help="some parts, with commas between")
    parser.add_argument("--check", metavar="TEXT", default="", help="of these parts only the checks that have it in their name")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu", "cpu-queue"], help="cpu, cpu-queue: to try this script where there is no GPU")
    parser.add_argument("--budget", type=seconds, metavar="SECONDS", help=f"of this call, at least {LEAST_BUDGET}; the next call continues")
    parser.add_argument("--out", type=pathlib.Path, default=TOP / "build/gpu-check", help="folder of results and report (build/gpu-check)")
    parser.add_argument("--save", type=pathlib.Path, metavar="FOLDER", help="after every part copy report.md, results.json and files.tar.gz there")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--again", action="store_true", help="ask again the checks that failed before")
    parser.add_argument("--build", type=pathlib.Path, default=TOP / "build/gpu", help="where prun is built (build/gpu)")
    parser.add_argument("--prun", type=pathlib.Path, help="a built prun: nothing is built, BUILD is the folder that contains it")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FILE", help="build what a GPU machine needs, write it to an archive (.tar, .tar.gz, .tar.xz), and end")
    parser.add_argument("--architectures", metavar="LIST", help="with --pack and when building: PRUN_CUDA_ARCHITECTURES (\"80-real;90a-real\")")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="merge the results in --out into FILE, such as "
                                                                         "tools/bench/results/nvidia-h100.json, and end")
    parser.add_argument("--plans", help="parity: only these plans")
    parser.add_argument("--ranks", default="1,2,4,8", help="parity: numbers of ranks (1,2,4,8)")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch (default: this one)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script where there is no GPU: figures mean nothing")
    parser.add_argument("--nccl-tests", metavar="FOLDER", help="where all_reduce_perf is")
    return parser


def parse(words):
    parser = parser_of()
    options = parser.parse_args(words)
    names = [part.name for part in PARTS]
    options.only = options.only.split(",") if options.only else names
    for name in options.only:
        if name not in names:
            parser.error(f"there is no part '{name}' (one of: {', '.join(names)})")
    options.plans = options.plans.split(",") if options.plans else []
    if not all(n.isdigit() and int(n) > 0 for n in options.ranks.split(",")):
        parser.error(f"--ranks must be whole numbers of at least 1 with commas between, not '{options.ranks}'")
    options.ranks = [int(n) for n in options.ranks.split(",")]
    options.out, options.build = options.out.resolve(), options.build.resolve()
    packed = needs.read(TOP)
    if packed and not options.prun and not options.pack:
        options.prun = TOP / "build/gpu/bin/prun"
    if options.prun:
        options.prun = options.prun.resolve()
        if not options.prun.exists():
            parser.error(f"--prun: {options.prun} is not there")
        options.build = options.prun.parent.parent
    problem = needs.unmet(packed) if packed else ""
    if problem:
        parser.error(problem)
    return options


def leave(number, _frame):
    raise SystemExit(128 + number)


def main(words):
    options = parse(words)
    for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl-C: running commands are stopped, results and report are written
        signal.signal(number, leave)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # a process with CUDA has gigabytes
    try:
        if options.keep:
            return keep.merge(options.out / "results.json", options.keep)
        if options.pack:
            return pack.build_and_pack(TOP, options)
        return Run(options, PARTS).finish()
    except ValueError as error:  # a malformed file of results
        print(f"gpu-check: {error}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
