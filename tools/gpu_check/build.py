"""Builds only the programs that the other parts run: no substitutes, no other transports.

The flags equal those of the preset ci, except the targets of kernels, so that ccache reuses CI's objects.
"""
import os
import re

from gpu_check.check import Check, Part, Verdict
from gpu_check.pack import LIBRARIES

TARGETS = ["prun", "prun_shm", "prun_socket", "prun_conform", "prun_conform_device"]
OF_CUDA = ["prun_nccl", "prun_device_cuda", "cuda_agreement_test", "cuda_kernel_bench"]  # built if CMake found their dependencies
NOT_BUILT = re.compile(r"device cuda|nccl")


def cmake_error(text):
    """Returns the first CMake error message on one line; "" if there is none."""
    found = re.search(r"CMake Error[^\n]*:\n\n?((?:  .*\n?)+)", text)
    return " ".join(found.group(1).split()) if found else ""


def configure(context):
    words = ["cmake", "-S", context.top, "--preset", "bench", "-B", context.build, "-DPRUN_WERROR=ON"]
    # RPATH and not RUNPATH, so that a packed prun and its libraries find their dependencies without the environment.
    words += [f"-DCMAKE_BUILD_RPATH=$ORIGIN/../{LIBRARIES};$ORIGIN/../../../{LIBRARIES};$ORIGIN/../../{LIBRARIES}"]
    words += [f"-DCMAKE_{kind}_LINKER_FLAGS=-Wl,--disable-new-dtags" for kind in ("EXE", "MODULE")]
    words += [f"-D{name}={folder}" for name, folder in context.machine["headers"].items()]
    if context.options.architectures:
        words += [f"-DPRUN_CUDA_ARCHITECTURES={context.options.architectures}"]
    done = context.run(*words)
    lines = [line for line in done.out.splitlines() if "not built" in line]
    if not done.ok:
        error = cmake_error(done.err)
        return Verdict(False, note=error or f"{done.why()} (tools/packages.txt lists what it needs)")
    if context.device == "cuda" and any("device cuda" in line for line in lines):
        return Verdict(False, note=next(line for line in lines if "device cuda" in line).strip("- "))
    return Verdict(True, "; ".join(line.strip("- ") for line in lines if NOT_BUILT.search(line)) or "everything found")


def compile_all(context):
    context.need_file(context.build / "build.ninja", "nothing is configured")
    known = context.run("ninja", "-C", context.build, "-t", "targets", "all", timeout=60).out
    targets = TARGETS + [target for target in OF_CUDA if f"{target}:" in known]
    done = context.run("ninja", "-C", context.build, "-j", len(os.sched_getaffinity(0)), *targets)
    if not done.ok:
        failed = re.search(r"FAILED: (\S+)", done.out)
        return Verdict(False, note=f"{f'{failed[1]} does not compile: ' if failed else ''}{done.why()}")
    return Verdict(True, f"{len(targets)} targets in {done.seconds:.0f} s")


def checks(_context):
    return [Check("configure", configure, timeout=180), Check("compile", compile_all, timeout=7200, least=30)]


PART = Part("build", "prun with the CUDA device, and the programs that try it", checks, limit=7200, uses=(), kept=False)
