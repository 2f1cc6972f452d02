"""Builds what the other steps run, in a folder of its own, unless a built one is given."""
import os

from gpu_check.check import Check, Step, Verdict
from gpu_check.pack import LIBRARIES
from gpu_check.results import NotPossible

TARGETS = ["prun", "plugins", "devices", "prun_conform"]
OF_CUDA = ["cuda_agreement_test", "cuda_kernel_bench"]


def given(context):
    if context.options.prun:
        raise NotPossible(f"a built program was given: {context.options.prun}")


def configure(context):
    given(context)
    words = ["cmake", "-S", context.top, "--preset", "bench", "-B", context.build, "-DPRUN_TESTS=ON"]
    # So that a packed prun finds its libraries, and they theirs, without the environment (RPATH, not RUNPATH).
    words += [f"-DCMAKE_BUILD_RPATH=$ORIGIN/../{LIBRARIES};$ORIGIN/../../../{LIBRARIES};$ORIGIN/../../{LIBRARIES}"]
    words += [f"-DCMAKE_{kind}_LINKER_FLAGS=-Wl,--disable-new-dtags" for kind in ("EXE", "MODULE")]
    words += [f"-D{name}={folder}" for name, folder in context.machine["headers"].items()]
    done = context.run(*words)
    said = [line for line in done.out.splitlines() if "not built" in line]
    if not done.ok:
        return Verdict(False, note=f"{done.why()} (tools/packages.txt lists what it needs)")
    if context.device == "cuda" and any("device cuda" in line for line in said):
        return Verdict(False, note=next(line for line in said if "device cuda" in line).strip("- "))
    return Verdict(True, "; ".join(line.strip("- ") for line in said) or "everything found")


def compile_all(context):
    given(context)
    context.need_file(context.build / "build.ninja", "nothing is configured")
    known = context.run("ninja", "-C", context.build, "-t", "targets", "all", timeout=60).out
    targets = TARGETS + [target for target in OF_CUDA if f"{target}:" in known]
    done = context.run("ninja", "-C", context.build, "-j", len(os.sched_getaffinity(0)), *targets)
    if not done.ok:
        return Verdict(False, note=done.why())
    return Verdict(True, f"{len(targets)} targets in {done.seconds:.0f} s")


def checks(_context):
    return [Check("configure", configure, timeout=180), Check("compile", compile_all, timeout=1800, least=30)]


STEP = Step("build", "prun with the CUDA device, and the programs that try it", checks, of_subject=False)
