"""The kernels under compute-sanitizer, one check per tool. Groups of ops run concurrently, because the tools are slow.
"""
import functools
import re
import shutil

from gpu_check.check import Check, Part, Verdict
from gpu_check.ops import groups, test_of
from gpu_check.results import NotPossible

FOUND = 99  # exit code of compute-sanitizer for a detected error
TOOLS = {"memcheck": "accesses beyond or misaligned", "racecheck": "races in shared memory", "synccheck": "barriers that not all threads reach"}
REPEATS = ("BitsOfTheCpu", "TensorsBesideAlignedAddresses", "EveryKindHasAKernel")  # these run the other groups' kernels once more


def looked_at(name, tool):
    case = name.split(".")[-1]
    return case not in REPEATS or (tool, case) == ("memcheck", "TensorsBesideAlignedAddresses")


def sanitized(context, tool):
    test, environment = test_of(context)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        raise NotPossible("compute-sanitizer is not found (it comes with the CUDA Toolkit)")
    clean = []

    def look(group):
        done = context.run(sanitizer, "--tool", tool, "--error-exitcode", FOUND, test, f"--gtest_filter={group}", environment=environment)
        if "not supported" in done.out + done.err:
            raise NotPossible(f"compute-sanitizer: {done.last_words(1)}")
        if done.ok:
            clean.append(group)
        errors = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.out + done.err)
        return "" if done.ok else f"{group}: {errors.group(0) if done.status == FOUND and errors else done.why()}"

    asked = [name for name in groups(context, test) if looked_at(name, tool)]
    if not asked:
        return Verdict(False, note="the test lists no groups of ops")
    found = [problem for problem in context.together(*(functools.partial(look, group) for group in asked)) if problem]
    return Verdict(not found, f"{len(clean)} of {len(asked)} groups of ops clean", f"no {TOOLS[tool]}", "; ".join(found))


def part(tool, limit):
    return Part(tool, f"kernels under compute-sanitizer: no {TOOLS[tool]}",
                lambda _: [Check(f"compute-sanitizer's {tool}", functools.partial(sanitized, tool=tool), timeout=300, least=30)], limit=limit,
                uses=("agreement", "cuda"))


PARTS = [part(tool, 90) for tool in TOOLS]
