"""NVIDIA's libraries where Python's packages brought them: cuBLASLt, cuDNN and NCCL often lie beside PyTorch and nowhere else.

Neither the loader nor CMake looks there: every command gets the folders in LD_LIBRARY_PATH, after those that it has, and the build
those of the headers.
"""
import os
import pathlib
import subprocess

LIBRARIES = ("libcudart.so", "libcublasLt.so", "libcudnn.so", "libnccl.so")
HEADERS = {"CUDNN_INCLUDE_DIR": "cudnn_graph.h", "NCCL_INCLUDE_DIR": "nccl.h"}  # by CMake's names for them


def packages(python):
    """The folders site-packages/nvidia/* of this interpreter."""
    try:
        done = subprocess.run([python, "-c", "import sys; print(*sys.path, sep='\\n')"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [folder for path in done.stdout.splitlines() if path for folder in sorted(pathlib.Path(path).glob("nvidia/*"))]


def environment(found):
    """({LD_LIBRARY_PATH} or nothing, the folders that it adds)."""
    had = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    holding = [folder / "lib" for folder in found if any(file.name.startswith(LIBRARIES) for file in folder.glob("lib/*"))]
    added = [str(folder) for folder in holding if str(folder) not in had]
    return ({"LD_LIBRARY_PATH": ":".join(had + added)} if added else {}), added


def headers(found):
    """{CMake's variable: folder} of the headers that come with them."""
    return {name: str(folder / "include") for name, header in HEADERS.items() for folder in found if (folder / "include" / header).exists()}
