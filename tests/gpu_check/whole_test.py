#!/usr/bin/env python3
"""All parts of tools/gpu-check on a simulated machine: CUDA and NCCL are the substitutes; nvidia-smi,
compute-sanitizer, PyTorch and nccl-tests are scripts. prun, its kernels, its tests and its benchmarks are the real
ones.

The figures are meaningless: the test checks that each part completes and that the report has its tables.
PRUN_PLAYED_GPUS is the number of GPUs (2).
Usage: whole_test.py BUILD TOP [option of gpu-check ...]     BUILD: a build folder with tests and, for the figures,
benchmarks
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BUILD, TOP = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
SUBSTITUTES = BUILD / "tests/substitutes"
sys.dont_write_bytecode = True
sys.path[:0] = [str(TOP / "tools"), str(TOP / "tools/bench")]
from gpu_check.bars import BARS, GAPS, HOST  # noqa: E402

GPUS = int(os.environ.get("PRUN_PLAYED_GPUS", 2))
CANNOT = ("no driver",)  # the substitute has a driver
# The NCCL substitute cannot run these items of the transport suite in full: it keeps segments mapped, takes minutes for
# 4 GiB, and supports fewer than 10,000 groups. CI runs them in part (tests/conformance).
BEYOND = ("load", "messages", "groups")
MEASURED = ("gpt2", "pytorch", "kernels", "kernels-rest", "kernels-figures", "nccl-tests")  # their bars are for a GPU

TORCH = """#!/bin/sh
case "$1" in
-c) case "$2" in *sys.path*) ;; *) exit 0;; esac;;
*) echo '{"torch": "played", "step_s": 0.1, "first_loss": 7, "last_loss": 6}';;
esac
"""
PERF = """#!/bin/sh
for bytes in 4096 65536; do echo "$bytes 1024 float sum -1 9.9 1.0 1.0 0 20.0 1.0 1.0 0"; done
"""
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
exec "$@"
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def machine(folder):
    """Returns the environment of gpu-check on that machine."""
    names = "".join("echo 'substitute of a GPU'; " for _ in range(GPUS))
    program(folder / "bin/nvidia-smi", f'#!/bin/sh\ncase "$1" in *name*) {names};; *) echo 580.1;; esac\n')
    program(folder / "bin/compute-sanitizer", SANITIZER)
    program(folder / "bin/played_torch", TORCH)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        program(folder / f"bin/{op}_perf", PERF)
    (folder / "lib").mkdir()
    for name, library in (("libcudart.so.13", "libprun_cuda_substitute.so"), ("libcudart.so", "libprun_cuda_substitute.so"), ("libcudart.so.12", "libprun_cuda_substitute.so"),
                          ("libnccl.so.2", "libnccl_2_28.so"), ("libcuda.so.1", "driver/libcuda.so.1")):
        (folder / "lib" / name).symlink_to(SUBSTITUTES / library)
    preloaded = [SUBSTITUTES / "libprun_cuda_substitute.so", *SUBSTITUTES.glob("libcublasLt.so.*"), *SUBSTITUTES.glob("libcudnn.so.*")]
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{folder / 'lib'}",
            "LD_PRELOAD": ":".join(map(str, preloaded)),  # cuda_kernel_bench links NVIDIA's own libraries
            "PRUN_DEVICE_PATH": str(SUBSTITUTES / "devices"), "PRUN_SUBSTITUTE_DEVICES": str(GPUS), "PRUN_SUBSTITUTE_MEMORY_MIB": "1024",
            "PRUN_SUBSTITUTE_CUDNN": "1"}


def problem_of(result):
    """Returns "" or a description of the error."""
    if result["status"] == "pass":
        return ""
    if result["status"] == "not possible here":
        excused = (result["name"] in CANNOT, GPUS < 2 and "needs 2 GPUs" in result["note"], "connects more ranks than" in result["note"],
                   "is not measured by this program" in result["note"], "this prun has no" in result["note"],
                   "not built" in result["note"] and not (BUILD / "bin/cuda_kernel_bench").exists())
        return "" if any(excused) else result["note"]
    if result["part"] == "conform-nccl" and result["name"] in BEYOND:
        return ""
    measured = result["figure"] and (result["table"] or result["name"] in (HOST, GAPS))
    return "" if result["part"] in MEASURED and measured else result["note"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        out = pathlib.Path(os.environ.get("PRUN_KEEP", folder / "out"))
        words = [sys.executable, TOP / "tools/gpu-check", "--prun", BUILD / "bin/prun", "--out", out, "--small", "--torch", folder / "bin/played_torch",
                 *sys.argv[3:]]
        done = subprocess.run(words, env=machine(folder))
        found = json.loads((out / "report.json").read_text())
        text = (out / "report.md").read_text()
    wrong = [f"{r['part']}, {r['name']}: {problem_of(r)}" for r in found["results"] if problem_of(r)]
    wrong += [f"the report lacks {name}" for name in BARS if f"| {name} |" not in text]
    print("\n".join(wrong) or f"{len(found['results'])} checks, exit {done.returncode}")
    return 1 if wrong or not found["results"] or done.returncode not in (0, 1) else 0


if __name__ == "__main__":
    sys.exit(main())
