"""The run: steps in order, what was found before is kept, one report at the end, whatever happened."""
import argparse
import hashlib
import pathlib
import signal
import sys
import time

from gpu_check import bad_input, build, conform, doctor, figures, machine, ops, pack, parity, report, sanitizers, trace
from gpu_check.check import perform
from gpu_check.context import Context
from gpu_check.results import FAIL, IMPOSSIBLE, PASS, BudgetSpent, Store

# What matters most comes first: time may run out. Does it run, are its losses right, its kernels, how fast is it.
STEPS = [build.STEP, doctor.STEP, parity.STEP, ops.STEP, figures.STEP, trace.STEP, bad_input.STEP, conform.STEP, sanitizers.STEP]
TOP = pathlib.Path(__file__).resolve().parent.parent.parent
OK, FAILED, NO_DEVICE, UNFINISHED = 0, 1, 2, 75

HELP = """Builds prun, tries it on this machine's GPUs, writes one report (tools/gpu_check/README.md).

steps, in this order:
"""


def parse(words):
    text = HELP + "\n".join(f"  {step.name:<10} {step.title}" for step in STEPS)
    parser = argparse.ArgumentParser(prog="tools/gpu-check", description=text, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="exit status: 0 nothing failed, 1 something did, 2 usage, or no GPU can be reached, "
                                            "75 the budget was spent first: the same command goes on")
    parser.add_argument("--only", metavar="STEPS", help="some steps, with commas between")
    parser.add_argument("--check", metavar="TEXT", default="", help="of these steps only the checks that have it in their name")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu", "cpu-queue"], help="cpu, cpu-queue: to try this script where there is no GPU")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of this call; what is left is for the next")
    parser.add_argument("--out", type=pathlib.Path, default=TOP / "build/gpu-check", help="folder of results and report (build/gpu-check)")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    parser.add_argument("--again", action="store_true", help="ask again what failed before")
    parser.add_argument("--build", type=pathlib.Path, default=TOP / "build/gpu", help="where prun is built (build/gpu)")
    parser.add_argument("--prun", type=pathlib.Path, help="a built prun: nothing is built, BUILD is the folder that it lies in")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FILE", help="write an archive (.tar, .tar.gz, .tar.xz) with what is built, to run elsewhere; "
                                                                          "nothing is checked")
    parser.add_argument("--plans", help="parity: these only")
    parser.add_argument("--ranks", default="1,2,4,8", help="parity: numbers of ranks to look at (1,2,4,8)")
    parser.add_argument("--torch", metavar="PYTHON", help="figures: an interpreter that has PyTorch (default: this one)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script where there is no GPU: figures mean nothing")
    parser.add_argument("--nccl-tests", metavar="FOLDER", help="figures: where all_reduce_perf lies")
    options = parser.parse_args(words)
    names = [step.name for step in STEPS]
    options.only = options.only.split(",") if options.only else names
    for name in options.only:
        if name not in names:
            parser.error(f"there is no step '{name}' (one of: {', '.join(names)})")
    options.plans = options.plans.split(",") if options.plans else []
    if not all(n.isdigit() and int(n) > 0 for n in options.ranks.split(",")):
        parser.error(f"--ranks wants whole numbers of at least 1 with commas between, not '{options.ranks}'")
    options.ranks = [int(n) for n in options.ranks.split(",")]
    options.out, options.build = options.out.resolve(), options.build.resolve()
    if options.prun:
        options.prun = options.prun.resolve()
        if not options.prun.exists():
            parser.error(f"--prun: {options.prun} is not there")
        options.build = options.prun.parent.parent
    return options


def subject(context):
    """Which program on which device: results of another say nothing of this one."""
    digest = hashlib.sha256()
    for path in (context.prun, context.plugin, context.build / "lib/prun/plugins/nccl.so"):
        digest.update(path.read_bytes() if path.is_file() else b"none")
    return {"prun": digest.hexdigest()[:16], "device": context.device, "gpus": context.machine["gpus"], "small": context.small}


def say(result):
    mark = {PASS: "pass", FAIL: "FAIL", IMPOSSIBLE: "-"}[result.status]
    print(f"{mark:<5}{result.step}: {result.name}{'  ' + result.figure if result.figure else ''}{'  (' + result.note + ')' if result.note else ''}", flush=True)


class Run:
    def __init__(self, options):
        self.options = options
        self.here = machine.describe(options.device, options.torch) | {"small": options.small}
        self.context = Context(options, self.here)
        options.out.mkdir(parents=True, exist_ok=True)
        if options.fresh:
            (options.out / "results.json").unlink(missing_ok=True)
        self.store = Store(options.out)
        self.left = []

    def perform(self, step, check):
        kept = self.store.find(step.name, check.name)
        if kept and step.of_subject and not (self.options.again and kept.status == FAIL):
            return
        # Of a whole budget a check may have all, or it would never be asked.
        if self.context.budget_end - time.monotonic() < min(check.least, check.timeout, 0.9 * (self.options.budget or check.least)):
            self.left.append((step.name, check.name))
            return
        self.store.forget(step.name, check.name)  # whatever ends this run: the old answer is none
        try:
            result = perform(self.context, step, check)
        except BudgetSpent:
            self.left.append((step.name, check.name))
            return
        say(result)
        self.store.add(result)

    def steps(self):
        begun = False
        for step in STEPS:
            if step.name not in self.options.only:
                continue
            if step.of_subject and not begun:
                if self.store.begin(subject(self.context), [s.name for s in STEPS if not s.of_subject]):
                    print("the results in the folder are of another program or machine: asking all of it again", flush=True)
                begun = True
            for check in step.checks(self.context):
                if self.options.check in check.name:
                    self.perform(step, check)

    def finish(self):
        """The exit status; the report is written whatever ends the steps."""
        try:
            self.steps()
        finally:
            report.write(self.options.out, self.here, self.store.results, self.left, STEPS, figures.BARS)
            print(f"{report.headline(self.here, self.store.results, self.left).replace('**', '')}\n{self.options.out / 'report.md'}", flush=True)
        return self.status()

    def status(self):
        of_run = [r for r in self.store.results if r.step in self.options.only]
        if self.left:
            return UNFINISHED
        if any(r.status == FAIL for r in of_run):
            return FAILED
        return NO_DEVICE if self.options.device == "cuda" and not self.here["gpus"] else OK


def write_archive(options):
    if not (options.build / "bin/prun").exists():
        print(f"{options.build / 'bin/prun'} is not there: tools/gpu-check --only build", file=sys.stderr)
        return NO_DEVICE
    size, missing, newest = pack.pack(TOP, options.build, options.pack)
    print(f"{options.pack}: {size / 2**20:.1f} MiB{', without ' + ', '.join(missing) if missing else ''}\n"
          f"it needs {' and '.join(f'{name} {version}' for name, version in newest.items())} or newer there\n"
          f"there: tar xf {options.pack.name} && gpu-check/tools/gpu-check --prun gpu-check/build/gpu/bin/prun")
    return OK


def leave(number, _frame):
    raise SystemExit(128 + number)


def main(words):
    options = parse(words)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what runs is stopped, what was found is written
        signal.signal(number, leave)
    return write_archive(options) if options.pack else Run(options).finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
