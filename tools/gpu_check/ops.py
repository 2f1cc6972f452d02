"""Every op of the device against the reference in f64: the test that CI runs with kernels on the CPU, here on the real device."""
import re

from gpu_check.check import Check, Step, Verdict


def test_of(context):
    """The test, and the device that it is to try."""
    context.need_gpu()
    test = context.need_file(context.build / "bin/cuda_agreement_test", "built without the CUDA device, or without GoogleTest")
    plugin = context.need_file(context.plugin, "built without the CUDA device")
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


def checks(_context):
    return [Check("every op, f32 and bf16, against f64", agreement, timeout=420, least=60)]


STEP = Step("ops", "kernels", checks)
