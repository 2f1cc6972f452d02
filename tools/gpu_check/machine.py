"""Describes this machine: GPUs, driver, toolkit, processor. The source is nvidia-smi, because prun's own report is
checked against it."""
import os
import pathlib
import platform
import shutil
import subprocess
import sys

from gpu_check import libraries

STATE = "clocks.sm,clocks.max.sm,power.limit,temperature.gpu,memory.used"  # conditions that figures depend on besides the model


def ask(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{words[0]}: {error}"
    return (done.stdout, "") if done.returncode == 0 else ("", (done.stderr or done.stdout).strip().splitlines()[-1:] or "failed")


def gpus():
    """Returns (names of the GPUs visible to CUDA, the reason if there is none)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return [], f"CUDA_VISIBLE_DEVICES='{visible}' hides every GPU"
    if shutil.which("nvidia-smi") is None:
        return [], "no NVIDIA driver: nvidia-smi is not found"
    text, problem = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        return [], f"nvidia-smi finds none ({''.join(problem)})" if problem else "nvidia-smi finds none"
    return (names[: len([w for w in visible.split(",") if w.strip()])], "") if visible is not None else (names, "")


def processor():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def describe(device, python=None, packed=()):
    """Returns the description. `python`: the interpreter that has PyTorch, if it is another one. `packed`: folders of
    libraries in a package."""
    names, problem = gpus()
    packages = libraries.packages(python or sys.executable)
    environment, folders = libraries.environment(packages, packed)
    driver, _ = ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if names else ("", "")
    state, _ = ask("nvidia-smi", f"--query-gpu={STATE}", "--format=csv,noheader") if names else ("", "")
    nvcc, _ = ask("nvcc", "--version") if shutil.which("nvcc") else ("", "")
    versions = libraries.versions(packages)
    release = next((line.split("release", 1)[1].strip() for line in nvcc.splitlines() if "release" in line), "not found")
    about = {
        "GPUs": f"{len(names)} × {', '.join(sorted(set(names)))}" if names else f"none: {problem}",
        "driver": driver.splitlines()[0].strip() if driver else "none",
        f"state ({STATE})": state.splitlines()[0].strip() if state else "none",
        "CUDA Toolkit (nvcc)": release,
        "libraries beside PyTorch": ":".join(folders) + " (LD_LIBRARY_PATH of every command)" if folders else "none, those of the system count",
        "versions": versions,
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "system": platform.platform(terse=True),
        "device under test": device,
    }
    return {"device": device, "gpus": names, "problem": problem, "about": about, "environment": environment, "headers": libraries.headers(packages),
            "versions": versions}
