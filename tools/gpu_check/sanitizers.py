"""The kernels under compute-sanitizer, which sees what wrong results may not show: all groups of ops at once, since it is slow."""
import functools
import re
import shutil

from gpu_check.check import Check, Step, Verdict
from gpu_check.ops import test_of
from gpu_check.results import NotPossible

FOUND = 99  # exit code of compute-sanitizer when it found something
TOOLS = {"memcheck": "accesses beyond or misaligned", "racecheck": "races in shared memory", "synccheck": "barriers that not all threads reach"}
REPEATS = ("BitsOfTheCpu", "TensorsBesideAlignedAddresses", "EveryKindHasAKernel")  # the other groups' kernels once more


def groups(context, test, tool):
    lines = context.run(test, "--gtest_list_tests", timeout=30).out.splitlines()
    suite = next((line.strip() for line in lines if re.fullmatch(r"\w+\.", line)), "")
    names = [line.strip() for line in lines if line.startswith("  ")]
    return [suite + name for name in names if name not in REPEATS or (tool, name) == ("memcheck", "TensorsBesideAlignedAddresses")]


def sanitized(context, tool):
    test, environment = test_of(context)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        raise NotPossible("compute-sanitizer is not found (it comes with the CUDA Toolkit)")

    def look(group):
        done = context.run(sanitizer, "--tool", tool, "--error-exitcode", FOUND, test, f"--gtest_filter={group}", environment=environment)
        if "not supported" in done.out + done.err:
            raise NotPossible(f"compute-sanitizer: {done.last_words(1)}")
        errors = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.out + done.err)
        return "" if done.ok else f"{group}: {errors.group(0) if done.status == FOUND and errors else done.why()}"

    asked = groups(context, test, tool)
    if not asked:
        return Verdict(False, note="the test lists no groups of ops")
    found = [problem for problem in context.together(*(functools.partial(look, group) for group in asked)) if problem]
    return Verdict(not found, f"{len(asked) - len(found)} of {len(asked)} groups of ops clean", f"no {TOOLS[tool]}", "; ".join(found))


def checks(_context):
    return [Check(f"compute-sanitizer's {tool}", functools.partial(sanitized, tool=tool), timeout=300, least=60) for tool in TOOLS]


STEP = Step("sanitizers", "kernels under compute-sanitizer", checks)
