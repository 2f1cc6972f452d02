"""User errors, and machines without a GPU: the documented exit code, and a message that names the cause."""
import functools
import re

from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible

NAN = """local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh {},
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 64, heads = 4, context = 32 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = {},
  optimizer = prun.sgd { lr = 1e38 },
  steps     = 20,
}
"""


def refused(context, words, code, named, environment=None, gpus=0, plan_text=None):
    """Requires that prun ends with this code and that its message matches each of `named`. `gpus`: GPUs that the check
    needs."""
    if gpus:
        context.need_gpu(gpus)
    plan = context.log.with_suffix(".lua")
    if plan_text:
        plan.write_text(plan_text)
    words = [str(word).format(gpus=context.gpus, more=context.gpus + 1, plan=plan) for word in words]
    done = context.run(context.prun, *words, timeout=90, environment=environment)
    text = done.out + done.err
    message = next((line for line in done.err.splitlines() if line.startswith("prun:")), done.last_words(1))
    missing = [word for word in named if not re.search(word, text, re.I)]
    problem = ""
    if done.timed_out or done.status != code:
        problem = f"{done.why()}, should end with {code}"
    elif missing:
        problem = f"the message lacks {', '.join(missing)}: {done.last_words()}"
    return Verdict(not problem, message[:300], f"exit {code}", problem)


SMALL = ["--set", "layers=2", "--set", "width=64", "--set", "context=32", "--set", "batch=8", "--set", "steps=2"]
ASKED = [
    ("a device that does not exist", dict(words=["plans/single.lua", *SMALL, "--device", "coda"], code=2, named=["coda"])),
    ("no GPU to be seen", dict(words=["plans/single.lua", *SMALL, "--device", "cuda"], code=2, named=["CUDA_VISIBLE_DEVICES"],
                               environment={"CUDA_VISIBLE_DEVICES": ""}, gpus=1)),
    ("no device with that index", dict(words=["plans/single.lua", *SMALL, "--device", "cuda:{gpus}"], code=2,
                                       named=["cuda:", "there is no device"], gpus=1)),
    ("more ranks than GPUs", dict(words=["plans/ddp.lua", *SMALL[:6], "--set", "batch=64", "--nproc", "{more}", "--device", "cuda"], code=2,
                                  named=["--ranks-per-device"], gpus=1)),
    ("nccl between ranks that share a GPU", dict(words=["plans/ddp.lua", *SMALL, "--nproc", "2", "--device", "cuda", "--ranks-per-device", "2",
                                                        "--transport", "nccl"], code=2, named=["NCCL", "shm"], gpus=1)),
    ("out of memory, said before launch", dict(words=["plans/single.lua", "--set", "layers=400", "--set", "width=16384", "--set", "heads=128",
                                                      "--set", "context=4096", "--device", "cuda"], code=3,
                                               named=["GiB|TiB", "fit|less|divides"], gpus=1)),
    ("a NaN under --check-finite", dict(words=["{plan}", "--device", "cuda", "--check-finite"], code=20, named=["nan|inf|finite"], gpus=1,
                                        plan_text=NAN)),
]


def no_driver(context):
    """Runs only without a driver; on machines with one, tests/substitutes/cuda covers the case."""
    if context.gpus:
        raise NotPossible("the driver is here; CI asks this of the substitute for CUDA")
    return refused(context, ["plans/single.lua", *SMALL, "--device", "cuda"], 2, ["cuda"])


def checks(_context):
    return [Check("no driver", no_driver)] + [Check(name, functools.partial(refused, **asked), least=10) for name, asked in ASKED]


PART = Part("bad-input", "errors", checks, limit=60, together=6, uses=("prun", "cuda", "nccl", "lua"))
