"""The conformance suites for devices and transports, on real GPUs and real NCCL. Each item is a result of its own.

Items run concurrently except `bits`, which opens a context for each kind of op and fails if another process disturbs it.
"""
import functools
import json
import pathlib
import re

from gpu_check import remedies
from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible

RANKS = 2  # most items of the suite for transports connect several ranks
# The transport's errors, and those of ranks that wait for a rejected one.
TOO_MANY = re.compile("every rank needs one of its own|ranks share device|has not joined|still running at the timeout")
MACHINE = ["load", "memory", "copies", "streams", "events", "host-calls", "capture", "ranks", "threads", "errors"]  # the part `ops` covers the item `ops`
TRANSPORT = ["load", "messages", "collectives", "bitwise", "groups", "threads", "faults", "misuse", "environment", "idle", "queue", "guards", "secret"]


def verdict(done):
    """Returns the verdict on one item, from the output of `prun conform --json`."""
    try:
        row = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return Verdict(False, bar="holds", note=done.why())
    if row["result"] == "not claimed":
        raise NotPossible("the plugin does not claim it")
    held = done.ok and row["result"] == "ok"
    return Verdict(held, "", "holds", "" if held else row["text"] + (f" ({row['case']})" if row["case"] else ""))


def item_of_device(context, item):
    context.need_gpu()
    plugin = context.need_file(context.plugin, "built without the CUDA device")
    context.need_file(context.build / "libexec/prun/prun_conform_device", "built without GoogleTest")
    return verdict(context.run(context.prun, "conform", plugin, item, "--json"))


def options_of_nccl(context, share):
    """Returns NCCL's options. Python packages contain CUDA's runtime under its versioned name only."""
    folders = context.environment.get("LD_LIBRARY_PATH", "").split(":")
    runtime = next((path for folder in folders if folder for path in sorted(pathlib.Path(folder).glob("libcudart.so*"))), None)
    options = [*(["share=1"] if share else []), *([f"cudart={runtime}"] if runtime else [])]
    return ["--transport-options", ",".join(options)] if options else []


def item_of_nccl(context, item):
    """Runs an item with one GPU per rank. If it connects more ranks than there are GPUs, they share them."""
    context.need_gpu()
    context.need_file(context.nccl, "built without NCCL (nccl.h)")
    context.need_file(context.build / "libexec/prun/prun_conform", "built without GoogleTest")
    for share in (False, True) if context.gpus >= RANKS else (True,):
        done = context.run(context.prun, "conform", "nccl", item, *options_of_nccl(context, share), "--json")
        if not TOO_MANY.search(done.out + done.err):
            return verdict(done)
    raise NotPossible(f"{item} connects more ranks than the {context.gpus} GPUs here take")


def on_the_device(context):
    context.need_gpu(RANKS)  # a world of one rank has no transport
    context.need_file(context.nccl, "built without NCCL (nccl.h)")
    done = context.run(context.prun, "bench", "all_reduce,all_gather,reduce_scatter,broadcast", "--nproc", min(context.gpus, 8), "--transport", "nccl",
                       "--memory", "cuda", "--bytes", "4,1M", "--samples", 3, "--json")
    rows = done.out.count('"op"')
    return Verdict(done.ok and rows == 8, f"{rows} rows, results compared", "8 rows, none wrong", "" if done.ok else done.why())


def of_device(_context):
    return [Check(item, functools.partial(item_of_device, item=item), timeout=90, remedies=remedies.OF_DEVICES) for item in MACHINE]


def of_bits(_context):
    return [Check("bits", functools.partial(item_of_device, item="bits"), timeout=240, least=30, remedies=remedies.OF_DEVICES)]


def of_nccl(_context):
    found = [Check(item, functools.partial(item_of_nccl, item=item), timeout=240, least=20, uses=("conform",)) for item in TRANSPORT]
    return [*found, Check("collectives on device memory", on_the_device, timeout=90)]


DEVICE = Part("conform", "the contract of device.h", of_device, limit=90, together=5, uses=("conform_device", "cuda"))
BITS = Part("conform-bits", "the same bits in every run, of every op", of_bits, limit=240, uses=("conform_device", "cuda"))
NCCL = Part("conform-nccl", "the contract of transport.h, over NCCL", of_nccl, limit=300, together=2, uses=("prun", "nccl", "shm"))
