"""prun's report of the machine must list the GPUs that nvidia-smi lists, with driver, toolkit and libraries."""
from gpu_check import remedies
from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible


def healthy(context):
    done = context.run(context.prun, "doctor", "--device", context.device)
    if done.status == 2 and "no command" in done.err:
        raise NotPossible("this prun has no doctor")
    if context.device == "cuda" and context.gpus == 0:
        # Without a GPU, only prun's report of the missing GPU and the reason can be checked.
        named = done.status != 0 and "cuda" in done.out + done.err
        return Verdict(named, f"exit {done.status}", "not 0, and the reason", "" if named else f"it does not report the missing GPU: {done.why()}")
    lines = [[line] for line in done.out.splitlines() if line.strip()]
    first = next((line.strip() for line, in lines if f"{context.device}:0 " in line), "")
    return Verdict(done.ok, first, "exit 0", "" if done.ok else done.why(), [["its report"], *lines])


def every_gpu(context):
    context.need_gpu()
    done = context.run(context.prun, "doctor", "--device", "cuda")
    missing = sorted({name for name in context.machine["gpus"] if name not in done.out})
    return Verdict(not missing, f"{context.gpus} × {context.machine['gpus'][0]}", "each one named",
                   f"doctor does not name {', '.join(missing)}" if missing else "")


def checks(_context):
    return [Check("prun doctor", healthy, timeout=60, remedies=remedies.OF_DEVICES), Check("names the GPUs", every_gpu, timeout=60)]


PART = Part("doctor", "what prun sees of the machine", checks, limit=60, together=2, uses=("prun", "cuda"))
