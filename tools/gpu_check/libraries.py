"""NVIDIA's libraries in Python packages: cuBLASLt, cuDNN and NCCL are often installed only with PyTorch.

Neither the loader nor CMake searches there. Every command therefore gets the folders in LD_LIBRARY_PATH, after the
existing ones, and the build gets the folders of the headers.
"""
import os
import pathlib
import re
import subprocess

LIBRARIES = ("libcudart.so", "libcublasLt.so", "libcudnn.so", "libnccl.so")
HEADERS = {"CUDNN_INCLUDE_DIR": "cudnn_graph.h", "NCCL_INCLUDE_DIR": "nccl.h"}  # by CMake's variable


def packages(python):
    """Returns the folders site-packages/nvidia/* of this interpreter."""
    try:
        done = subprocess.run([python, "-c", "import sys; print(*sys.path, sep='\\n')"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [folder for path in done.stdout.splitlines() if path for folder in sorted(pathlib.Path(path).glob("nvidia/*"))]


def environment(found, first=()):
    """Returns ({LD_LIBRARY_PATH} or {}, the added folders); the folders in `first` are searched before all others."""
    had = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    holding = [folder / "lib" for folder in found if any(file.name.startswith(LIBRARIES) for file in folder.glob("lib/*"))]
    added = [str(folder) for folder in holding if str(folder) not in had]
    found = [*map(str, first), *had, *added]
    return ({"LD_LIBRARY_PATH": ":".join(found)} if first or added else {}), added


def headers(found):
    """Returns {CMake's variable: folder} for the packages' headers."""
    return {name: str(folder / "include") for name, header in HEADERS.items() for folder in found if (folder / "include" / header).exists()}


def system():
    """Returns {file: path} of the libraries that the loader finds without LD_LIBRARY_PATH, from its cache."""
    try:
        done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True)
    except OSError:
        return {}
    return dict(re.findall(r"(?m)^\s+(\S+) .*=> (\S+)$", done.stdout))


def versions(found):
    """Returns "cublas 13.0.0.19, cudnn 9.19.0.56, nccl 2.28.9": versions of the packages, or of the system's libraries
    if a package is missing."""
    known = {}
    for folder in {folder.parent.parent for folder in found}:
        for info in sorted(folder.glob("nvidia_*.dist-info")):
            name, version = re.match(r"nvidia_(.*)-([^-]*)\.dist-info", info.name).groups()
            known[re.sub(r"_cu\d+$", "", name)] = version
    for name, path in system().items():
        short = name[3:].split(".")[0]
        if name.startswith(LIBRARIES) and short.lower().removesuffix("lt") not in known:
            known[short] = pathlib.Path(path).resolve().name
    return ", ".join(f"{name} {version}" for name, version in sorted(known.items()) if re.search("cublas|cudnn|nccl|cuda_runtime|cudart", name)) or "unknown"
