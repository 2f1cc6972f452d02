"""The suites that every device and every transport faces, over the real GPUs and the real NCCL: items that connect more ranks than there are GPUs
cannot be asked."""
import re

from gpu_check.check import Check, Step, Verdict

RANKS = 2  # NCCL refuses ranks that share a GPU, and most items need several
TOO_MANY = "every rank needs one of its own"  # what the transport says


MACHINE = ["load", "memory", "copies", "streams", "events", "host-calls", "capture", "bits", "ranks", "threads", "errors"]  # `ops` is the step ops


def device(context):
    context.need_gpu()
    plugin = context.need_file(context.plugin, "built without the CUDA device")
    context.need_file(context.build / "libexec/prun/prun_conform_device", "built without GoogleTest")
    done = context.run(context.prun, "conform", plugin, *MACHINE)
    items = re.findall(r"(?m)^ ?\d+ (\S+) +(ok|FAILED|not claimed) +(.*)", done.out)
    failed = [f"{name}: {said}" for name, result, said in items if result == "FAILED"]
    held = sum(result == "ok" for _, result, _ in items)
    return Verdict(done.ok and held == len(MACHINE), f"{held} of {len(MACHINE)} items hold", "every item", "; ".join(failed) or ("" if done.ok else done.why()))


def suite(context):
    context.need_gpu(RANKS)
    context.need_file(context.build / "lib/prun/plugins/nccl.so", "built without NCCL (nccl.h)")
    context.need_file(context.build / "libexec/prun/prun_conform", "built without GoogleTest")
    done = context.run(context.prun, "conform", "nccl")
    items = re.findall(r"(?m)^ ?\d+ (\S+) +(ok|FAILED)  (.*)", done.out)
    too_many = [name for name, result, said in items if result == "FAILED" and TOO_MANY in said]
    failed = [f"{name}: {said}" for name, result, said in items if result == "FAILED" and name not in too_many]
    held = sum(result == "ok" for _, result, _ in items)
    figure = f"{held} of {len(items)} items hold" + (f"; more than {context.gpus} GPUs for {', '.join(too_many)}" if too_many else "")
    ok = held > 0 and not failed and (done.ok or bool(too_many))
    return Verdict(ok, figure, "every item", "" if ok else "; ".join(failed) or done.why())


def on_the_device(context):
    context.need_gpu(RANKS)  # a world of one rank has no transport
    context.need_file(context.build / "lib/prun/plugins/nccl.so", "built without NCCL (nccl.h)")
    done = context.run(context.prun, "bench", "all_reduce,all_gather,reduce_scatter,broadcast", "--nproc", min(context.gpus, 8), "--transport", "nccl",
                       "--memory", "cuda", "--bytes", "4,1M", "--samples", 3, "--json")
    rows = done.out.count('"op"')
    return Verdict(done.ok and rows == 8, f"{rows} rows, results compared", "8 rows, none wrong", "" if done.ok else done.why())


def checks(_context):
    return [Check("prun conform cuda", device, timeout=540, least=120), Check("prun conform nccl", suite, timeout=540, least=120),
            Check("collectives on device memory", on_the_device, timeout=90)]


STEP = Step("conform", "what device.h and transport.h promise", checks)
