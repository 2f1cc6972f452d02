"""An archive that gpu-check runs from on a machine where nothing can be built or installed: programs, the libraries that
they need, plans and scripts.

The machine brings the C and C++ runtimes (--pack says how new), the driver, and the libraries of CUDA, which are
loaded when they are used. Programs of gpu-check's own build look for the packed libraries beside themselves (build.py gives them that path).
"""
import pathlib
import re
import subprocess
import tarfile

LIBRARIES = "lib/needed"  # in the build folder
PROGRAMS = ["bin/prun", "bin/cuda_agreement_test", "bin/cuda_kernel_bench", "libexec/prun/prun_conform", "libexec/prun/prun_conform_device",
            *(f"lib/prun/plugins/{name}.so" for name in ("shm", "socket", "nccl")), "lib/prun/devices/cuda.so"]
MANIFESTS = [f"lib/prun/plugins/{name}.plugin" for name in ("shm", "socket", "nccl")]  # without them they are not chosen
SCRIPTS = ["lua", "plans", "tools/gpu-check", "tools/gpu_check", "tools/bench/gpu_train.py", "tools/bench/gpt2.lua", "tools/bench/nccl_tests.py",
           "tools/bench/peers/gpt2_torch.py"]
THERE = ("ld-linux", "libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libresolv.so", "libstdc++.so", "libgcc_s.so", "libcuda.so",
         "libcudart.so", "libcublas", "libcudnn", "libnvrtc", "libnccl.so")


def needed(program):
    """{name: path} of the libraries that the loader would take for it."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and words[2].startswith("/") and not words[0].startswith(THERE):
            found[words[0]] = words[2]
    return found


def newest(files):
    """{"GLIBC": "2.34", "GLIBCXX": "3.4.30"}: the newest versions of symbols that they ask for."""
    found = {}
    for file in files:
        for name, version in re.findall(rb"(?:^|[^A-Z])(GLIBC|GLIBCXX)_([0-9.]+[0-9])\0", pathlib.Path(file).read_bytes()):
            found.setdefault(name.decode(), set()).add(tuple(map(int, version.split(b"."))))
    return {name: ".".join(map(str, max(versions))) for name, versions in sorted(found.items())}


def stripped(entry):
    return None if "__pycache__" in entry.name else entry


def pack(top, build, archive):
    """Returns (bytes of the archive, what was left out because it is not built, what the other machine must have)."""
    mode = {".xz": "w:xz", ".gz": "w:gz"}.get(pathlib.Path(archive).suffix, "w")
    libraries, missing, packed = {}, [], []
    with tarfile.open(archive, mode) as tar:
        for name in PROGRAMS:
            if not (build / name).exists():
                missing.append(name)
                continue
            libraries.update(needed(build / name))
            tar.add(build / name, f"gpu-check/build/gpu/{name}")
            packed.append(build / name)
        for name in MANIFESTS:
            if (build / name).exists():
                tar.add(build / name, f"gpu-check/build/gpu/{name}")
        for name, path in sorted(libraries.items()):
            tar.add(pathlib.Path(path).resolve(), f"gpu-check/build/gpu/{LIBRARIES}/{name}")
        for name in SCRIPTS:
            tar.add(top / name, f"gpu-check/{name}", filter=stripped)
    return pathlib.Path(archive).stat().st_size, missing, newest([*packed, *libraries.values()])
