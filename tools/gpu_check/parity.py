"""Every plan that fits, at small sizes: its losses must equal the CPU's, and be bitwise identical in two runs.

The plans of FIRST are a part of their own, because they represent the others. Ranks with a GPU each communicate over
nccl and over shm; if there are more ranks than GPUs, they share them over shm. With --device cpu the CPU is compared with
the device `reference`; with cpu-queue, the CPU as a queue device.
"""
import functools
import json
import math

from gpu_check import remedies
from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible

SIZES = {"width": 64, "context": 32, "batch": 32, "steps": 5}  # arguments that the plan lacks are omitted
TINY = {"layers": 4, "width": 32, "heads": 2, "context": 16, "batch": 8, "steps": 5}  # --small
CLOSE = {"f32": 1e-4, "bf16": 2e-2}
IN_BF16 = ("single", "zero3", "megatron")
FIRST = ("single", "ddp", "zero3")
NOT_SO = (2, 3)  # exit codes of prun check if a plan does not fit so many ranks
TOGETHER = 8


def plans(context, done, first):
    wanted = context.options.plans
    found = [plan for plan in json.loads(done.out)["plans"] if not plan["error"] and (plan["name"] in FIRST) == first]
    return [plan for plan in found if not wanted or plan["name"] in wanted]


def settings_of(context, plan, dtype="f32"):
    names = {argument["name"] for argument in plan["arguments"]}
    chosen = {name: value for name, value in (TINY if context.small else SIZES).items() if name in names}
    if dtype != "f32":
        chosen["dtype"] = dtype
    return chosen


def fits(context, plan, ranks):
    words = [context.prun, "check", plan["path"], "--nproc", ranks]
    for name, value in settings_of(context, plan).items():
        words += ["--set", f"{name}={value}"]
    done = context.run(*words, timeout=30)
    return done.status not in NOT_SO  # a plan that fails for another reason fails in its check, too


def placements(context, ranks):
    """Returns [(transport, further options)] for this number of ranks."""
    if context.device != "cuda":
        return [("auto", [])]
    if ranks <= max(context.gpus, 1):
        return [("nccl", []), ("shm", [])] if ranks > 1 else [("auto", [])]
    return [("shm", ["--ranks-per-device", math.ceil(ranks / max(context.gpus, 1))])]


def difference(ours, theirs):
    """Returns the largest relative difference of two curves."""
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in zip(ours, theirs)), default=0.0)


def same(context, plan, ranks, transport, more, dtype):
    if context.device == "cuda":
        context.need_gpu()
        if transport == "nccl" and not context.nccl.exists():
            raise NotPossible("built without NCCL (nccl.h)")
    return compare(context, plan["path"], ranks, settings_of(context, plan, dtype), dtype, "--transport", transport, *more)


def compare(context, path, ranks, settings, dtype, *more):
    """Trains a plan on the CPU and twice on the device, there with the options `more`, and compares the losses."""
    (base, expected), *trained = context.together(  # concurrently, because no time is measured here
        functools.partial(context.train, path, ranks, "reference" if context.device == "cpu" else "cpu", settings=settings),
        *[functools.partial(context.train, path, ranks, context.device, *more, settings=settings)] * 2)
    if not base.ok:
        return Verdict(False, note=f"the run on the CPU failed: {base.why()}")
    wrong = next((done for done, _ in trained if not done.ok), None)
    if wrong:
        return Verdict(False, note=wrong.why())
    runs = [(done.out, steps) for done, steps in trained]
    bar = f"{CLOSE[dtype]:g} relative, twice the same bits"
    curves = [[step["loss"] for step in steps] for _, steps in runs]
    wanted = [step["loss"] for step in expected]
    if len(curves[0]) != len(wanted) or len(curves[1]) != len(wanted):
        return Verdict(False, "", bar, f"{len(wanted)} steps were expected, {len(curves[0])} and {len(curves[1])} ran")
    if any(loss is None for loss in wanted):  # a plan without a loss: its output is compared
        equal = all(sorted(out.splitlines()) == sorted(base.out.splitlines()) for out, _ in runs)  # the order of ranks is arbitrary
        return Verdict(equal, "prints the same" if equal else "", "the same lines", "" if equal else "prints something else than on the CPU")
    if any(loss is None for curve in curves for loss in curve):
        return Verdict(False, "", bar, "a loss is not a number")
    worst = difference(curves[0], wanted)
    figure = f"{worst:.1e} over {len(wanted)} steps"
    if curves[0] != curves[1]:
        first = next(i for i, (a, b) in enumerate(zip(*curves)) if a != b)
        return Verdict(False, figure, bar, f"two runs differ from step {first} on: {curves[0][first]!r}, {curves[1][first]!r}")
    return Verdict(worst <= CLOSE[dtype], figure, bar, "" if worst <= CLOSE[dtype] else f"{curves[0][-1]!r} instead of {wanted[-1]!r} after the last step")


def too_many(context, plan):
    raise NotPossible(f"{plan['name']} fits none of {', '.join(map(str, context.options.ranks))} ranks in this size")


def counts(context, possible):
    """Returns one rank, the smallest number of several, and the largest with a GPU each."""
    several = [n for n in possible if n > 1]
    own = [n for n in several if n <= context.gpus]
    return sorted({n for n in possible if n == 1} | set(several[:1]) | set(own[-1:]))


def checks(context, first):
    context = context.of_check("parity_first_plans" if first else "parity_plans", float("inf"))
    listed = context.run(context.prun, "plans", "--json", timeout=30)
    if not listed.ok:
        return [Check("prun plans", lambda _: Verdict(False, note=listed.why()))]
    chosen = sorted(plans(context, listed, first), key=lambda plan: FIRST.index(plan["name"]) if first else 0)
    asked = [(plan, ranks) for plan in chosen for ranks in context.options.ranks]
    fitting = context.together(*(functools.partial(fits, context, *one) for one in asked))
    found = []
    for plan in chosen:
        of_plan = counts(context, [ranks for (name, ranks), fit in zip(asked, fitting) if name is plan and fit])
        if not of_plan:
            found.append(Check(plan["name"], functools.partial(too_many, plan=plan)))
        for ranks in of_plan:
            for transport, more in placements(context, ranks):
                for dtype in ("f32", "bf16") if plan["name"] in IN_BF16 else ("f32",):
                    shared = " sharing GPUs" if more else ""
                    name = f"{plan['name']}, {ranks} rank{'s' if ranks > 1 else ''}{shared}, {transport}, {dtype}"
                    found.append(Check(name, functools.partial(same, plan=plan, ranks=ranks, transport=transport, more=more, dtype=dtype),
                                       timeout=60 if first else 90, least=15, remedies=remedies.OF_RUNS if context.device == "cuda" else (),
                                       uses=(transport,) if transport in ("nccl", "shm") else ()))
    return found


FIRST_PART = Part("parity", f"losses of {', '.join(FIRST)} against the CPU's", functools.partial(checks, first=True), limit=80, together=TOGETHER)
REST = Part("parity-rest", "losses of every other plan that fits, against the CPU's", functools.partial(checks, first=False), limit=120, together=TOGETHER)
