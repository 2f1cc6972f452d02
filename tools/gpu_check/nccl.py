"""NCCL between ranks that share one card, which tests permit (`nccl.share=1`), and compared with nccl-tests on several
cards."""
import os
import pathlib
import re
import shutil
import signal
import sys
import threading
import time

from gpu_check import parity, remedies
from gpu_check.bars import BARS, COLLECTIVES, NCCL
from gpu_check.check import Check, Part, Verdict
from gpu_check.pytorch import measured
from gpu_check.results import NotPossible

SHARE = "share=1"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
KILLED = 10  # prun's exit code if a rank was killed
ENDLESS = {"layers": 2, "width": 64, "context": 32, "batch": 16, "steps": 1_000_000}


def sharing(context, ranks=2):
    """Returns the options that put `ranks` ranks on one card, with NCCL between them."""
    context.need_gpu()
    context.need_file(context.nccl, "built without NCCL (nccl.h)")
    return ["--transport", "nccl", "--transport-options", f"nccl.{SHARE}", "--ranks-per-device", ranks]


def collectives_sharing(context):
    done = context.run(context.prun, "bench", ",".join(OPS), "--nproc", 2, *sharing(context), "--memory", "cuda",
                       "--bytes", "4,70K,1M", "--samples", 2, "--json", timeout=60)
    rows = done.out.count('"op"')
    return Verdict(done.ok and rows == 3 * len(OPS), f"{rows} rows, results compared", f"{3 * len(OPS)} rows, none wrong", "" if done.ok else done.why())


def step_sharing(context):
    """Compares the losses of zero3 on two ranks, replayed from graphs that contain NCCL's kernels, with the CPU's."""
    more = sharing(context)
    plan = {"name": "zero3", "path": "plans/zero3.lua", "arguments": [{"name": name} for name in ("width", "context", "batch", "steps", "dtype")]}
    return parity.same(context, plan, 2, "nccl", more[2:], "f32")


def ranks_of(launcher):
    """Returns the process ids of a launcher's ranks."""
    found = []
    try:
        for child in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            if re.match(r"prun-rank\d+", pathlib.Path(f"/proc/{child}/comm").read_text()):
                found.append(int(child))
    except OSError:  # the launcher is exiting
        pass
    return found


def abort_sharing(context):
    """Kills a rank while NCCL's collectives run. The job must end soon, with the right exit code, and leave no rank."""
    more = sharing(context)
    words = [context.prun, "plans/zero3.lua", "--nproc", 2, "--device", "cuda", *more]
    for name, value in ENDLESS.items():
        words += ["--set", f"{name}={value}"]
    metrics = context.log.with_suffix(".jsonl")
    metrics.unlink(missing_ok=True)
    killed, over = {}, threading.Event()

    def kill():
        while not over.is_set() and not killed:
            if metrics.exists() and metrics.read_bytes().count(b"\n") > 5:
                for process in list(context.processes.running):
                    ranks = ranks_of(process.pid)
                    if ranks:
                        killed["at"] = time.monotonic()
                        killed["ranks"] = ranks
                        os.kill(ranks[-1], signal.SIGKILL)
            time.sleep(0.05)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    done = context.run(*words, "--metrics", metrics, timeout=60)
    over.set()
    killer.join()
    if not killed:
        return Verdict(False, note=f"no step was seen before the end: {done.why()}")
    seconds = time.monotonic() - killed["at"]
    left = [rank for rank in killed["ranks"] if pathlib.Path(f"/proc/{rank}").exists()]
    right = done.status == KILLED and seconds < 20 and not left
    return Verdict(right, f"exit {done.status} after {seconds:.1f} s", f"exit {KILLED} within 20 s, no rank left",
                   "" if right else f"{done.why()}{f'; ranks {left} are left' if left else ''}")


def beside_nccl_tests(context):
    context.need_gpu(2)
    where = context.options.nccl_tests or (shutil.which("all_reduce_perf") or "").rsplit("/", 1)[0]
    if not where:
        raise NotPossible("nccl-tests is not found (--nccl-tests FOLDER with all_reduce_perf)")
    bar = BARS[COLLECTIVES]
    done, found = measured(context, "nccl_tests.json", [sys.executable, "tools/bench/nccl_tests.py", "--prun", context.prun, "--nccl-tests", where,
                                                        "--ranks", context.gpus, *(["--most", 65536, "--rounds", 1] if context.small else [])])
    rows = found["rows"] if found else []
    if not rows:
        return Verdict(False, bar=bar, note=done.why())
    table = [["collective", "bytes", "prun, µs", "nccl-tests, µs", "ratio"]]
    over = {}
    for row in rows:
        over[f"{row['op']} {row['bytes']} B"] = row["prun_us"] / row["nccl_us"]
        table.append([row["op"], str(row["bytes"]), f"{row['prun_us']:.1f}", f"{row['nccl_us']:.1f}", f"{row['prun_us'] / row['nccl_us']:.3f}"])
    worst = max(over, key=over.get)
    slow = [f"{name} {ratio:.2f} ×" for name, ratio in over.items() if ratio > NCCL] + ([done.why()] if done.status not in (0, 1) else [])
    return Verdict(not slow, f"{len(rows)} sizes, at most {over[worst]:.3f} × ({worst})", bar, "; ".join(slow), table)


def of_sharing(_context):
    return [Check("collectives between ranks that share a card", collectives_sharing, timeout=70, least=15, remedies=remedies.OF_DEVICES),
            Check("a captured step of zero3 on ranks that share a card", step_sharing, timeout=70, least=15, remedies=remedies.OF_TRANSPORTS),
            Check("abort between ranks that share a card", abort_sharing, timeout=70, least=15)]


SHARED = Part("nccl-shared", "NCCL between two ranks on one card", of_sharing, limit=90, uses=("prun", "cuda", "nccl", "lua", "plans/zero3.lua"))
BESIDE = Part("nccl-tests", "nccl beside nccl-tests", lambda _: [Check(COLLECTIVES, beside_nccl_tests, timeout=420, least=120)],
              limit=420, uses=("prun", "cuda", "nccl", "tools/bench/nccl_tests.py"))
