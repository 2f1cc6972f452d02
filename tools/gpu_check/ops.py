"""Every op of the device against the reference in f64: the test that CI runs with kernels on the CPU, here on the real device."""
import functools
import re
import shutil

from gpu_check.check import Check, Step, Verdict
from gpu_check.results import NotPossible

FOUND = 99  # exit code of compute-sanitizer when it found something
TOOLS = {"memcheck": "accesses beyond or misaligned", "racecheck": "races in shared memory", "synccheck": "barriers that not all threads reach"}


def test_of(context):
    """The test, and the device that it is to try."""
    context.need_gpu()
    test = context.need_file(context.build / "bin/cuda_agreement_test", "built without the CUDA device, or without GoogleTest")
    plugin = context.need_file(context.build / "lib/prun/devices/cuda.so", "built without the CUDA device")
    return test, {"PRUN_CUDA_PLUGIN": str(plugin)}


def agreement(context):
    test, environment = test_of(context)
    plugin = environment["PRUN_CUDA_PLUGIN"]
    done = context.run(test, environment=environment)
    if done.ok and f"cuda device: {plugin}" not in done.out:
        return Verdict(False, note=f"the test does not say that it ran on {plugin}")
    passed = re.search(r"\[  PASSED  \] (\d+) test", done.out)
    failed = re.findall(r"(?m)^\[  FAILED  \] ([\w./]+)(?:,| \()", done.out)
    ok = done.ok and passed is not None and int(passed.group(1)) > 0
    note = "" if ok else (f"failed: {', '.join(dict.fromkeys(failed))}" if failed else done.why())
    return Verdict(ok, f"{passed.group(1) if passed else 0} groups of ops agree", "all", note)


def sanitized(context, tool):
    test, environment = test_of(context)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        raise NotPossible("compute-sanitizer is not found (it comes with the CUDA Toolkit)")
    done = context.run(sanitizer, "--tool", tool, "--error-exitcode", FOUND, test, environment=environment)
    if "not supported" in done.out + done.err:
        raise NotPossible(f"compute-sanitizer: {done.last_words(1)}")
    errors = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.out + done.err)
    note = "" if done.ok else (errors.group(0) if done.status == FOUND and errors else done.why())
    return Verdict(done.ok, errors.group(0) if errors else "", f"no {TOOLS[tool]}", note)


def checks(_context):
    return [Check("every op, f32 and bf16, against f64", agreement, timeout=420, least=60)] + [
        Check(f"under compute-sanitizer's {tool}", functools.partial(sanitized, tool=tool), timeout=540, least=120) for tool in TOOLS]


STEP = Step("ops", "kernels", checks)
