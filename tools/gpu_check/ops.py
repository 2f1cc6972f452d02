"""Compares every op of the device with the f64 reference: CI's test, which runs kernels on the CPU, here on the real
device.

Each group of ops is a process and a result of its own. Groups with attention also run with prun's own kernels, and with
cuDNN's faster gradient.
"""
import functools
import re

from gpu_check import remedies
from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible


def variants(case):
    """Returns the device options under which a group runs besides the default."""
    if not case.startswith("Attention"):
        return ()
    return ("cudnn=0",) if "SameBits" in case else ("cudnn=0", "deterministic=0")


def test_of(context):
    """Returns the test, and the variable that names the plugin it loads."""
    context.need_gpu()
    test = context.need_file(context.build / "bin/cuda_agreement_test", "built without the CUDA device, or without GoogleTest")
    plugin = context.need_file(context.plugin, "built without the CUDA device")
    return test, {"PRUN_CUDA_PLUGIN": str(plugin)}


def groups(context, test):
    """Returns the names of the test's cases, with their suite."""
    lines = context.run(test, "--gtest_list_tests", timeout=30).out.splitlines()
    suite = next((line.strip() for line in lines if re.fullmatch(r"\w+\.", line)), "")
    return [suite + line.strip() for line in lines if line.startswith("  ")]


def agrees(context, group, options=""):
    test, environment = test_of(context)
    plugin = environment["PRUN_CUDA_PLUGIN"]
    done = context.run(test, f"--gtest_filter={group}", environment={**environment, **({"PRUN_CUDA_OPTIONS": options} if options else {})})
    if done.ok and f"cuda device: {plugin}" not in done.out:
        return Verdict(False, note=f"the test does not report that it ran on {plugin}")
    passed = re.search(r"\[  PASSED  \] 1 test", done.out) is not None
    error = re.search(r"(?ms): Failure\n(.*?)^\[", done.out)  # the first failure that GoogleTest prints
    note = "" if done.ok and passed else (" ".join(error.group(1).split())[:300] if error else done.why())
    return Verdict(done.ok and passed, bar="agrees with f64", note=note)


def impossible(_context, why):
    raise NotPossible(why)


def checks(context):
    try:
        test, _ = test_of(context)
    except NotPossible as why:
        return [Check("every op", functools.partial(impossible, why=str(why)))]
    names = groups(context.of_check("ops_list", float("inf")), test)
    if not names:
        return [Check("every op", lambda _: Verdict(False, note="cuda_agreement_test lists no groups of ops"))]
    found = []
    for name in names:
        case = name.split(".")[1]
        for options in ("", *variants(case)):
            tried = tuple(remedy for remedy in remedies.OF_KERNELS if remedy != options)
            found.append(Check(case + (f", {options}" if options else ""), functools.partial(agrees, group=name, options=options), timeout=100, remedies=tried))
    return found


PART = Part("ops", "kernels", checks, limit=110, together=16, uses=("agreement", "cuda"))
