"""The suite that every transport faces, over the real NCCL."""
import re

from gpu_check.check import Check, Step, Verdict

RANKS = 2  # NCCL refuses ranks that share a GPU, and most items need two


def suite(context):
    context.need_gpu(RANKS)
    context.need_file(context.build / "lib/prun/plugins/nccl.so", "built without NCCL (nccl.h)")
    context.need_file(context.build / "libexec/prun/prun_conform", "built without GoogleTest")
    done = context.run(context.prun, "conform", "nccl")
    passed = re.search(r"(\d+) (?:items? )?passed", done.out)
    return Verdict(done.ok, passed.group(0) if passed else "", "every item", "" if done.ok else done.why())


def on_the_device(context):
    """With one GPU a world of one rank is what NCCL can make."""
    context.need_gpu()
    context.need_file(context.build / "lib/prun/plugins/nccl.so", "built without NCCL (nccl.h)")
    done = context.run(context.prun, "bench", "all_reduce,all_gather,reduce_scatter,broadcast", "--nproc", min(context.gpus, 8), "--transport", "nccl",
                       "--memory", "cuda", "--bytes", "4,1M", "--samples", 3, "--json")
    rows = done.out.count('"op"')
    return Verdict(done.ok and rows == 8, f"{rows} rows, results compared", "8 rows, none wrong", "" if done.ok else done.why())


def checks(_context):
    return [Check("prun conform nccl", suite, timeout=540, least=120), Check("collectives on device memory", on_the_device, timeout=90)]


STEP = Step("conform", "the transport nccl", checks)
