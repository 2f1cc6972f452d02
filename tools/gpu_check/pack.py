"""An archive that runs gpu-check on a machine where nothing can be built or installed: programs, the libraries that
they need, plans and scripts.

The machine provides the C and C++ libraries (needs.py compares their versions), Python 3, the driver, and the CUDA
libraries, which are loaded on use. The packed programs find packed libraries by their RPATH (build.py).
"""
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

from gpu_check import keep, needs
from gpu_check.results import PASS

LIBRARIES = "lib/needed"  # in the build folder
PROGRAMS = ["bin/prun", "bin/cuda_agreement_test", "bin/cuda_kernel_bench", "libexec/prun/prun_conform", "libexec/prun/prun_conform_device",
            *(f"lib/prun/plugins/{name}.so" for name in ("shm", "socket", "nccl")), "lib/prun/devices/cuda.so"]
MANIFESTS = [f"lib/prun/plugins/{name}.plugin" for name in ("shm", "socket", "nccl")]  # a plugin without a manifest is never chosen
SCRIPTS = ["lua", "plans", "tests/parity/groups.lua", "tools/gpu-check", "tools/gpu_check",
           *(f"tools/bench/{name}" for name in ("gpu_train.py", "token_ids.py", "gpt2.lua", "nccl_tests.py", "rows.py", "peers/gpt2_torch.py"))]
MOST_MIB = 48
THERE = ("ld-linux", "libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libresolv.so", "libstdc++.so", "libgcc_s.so", "libcuda.so",
         "libcudart.so", "libcublas", "libcudnn", "libnvrtc", "libnccl.so")


def needed(program):
    """Returns {name: path} of the libraries that the loader would load for it."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and words[2].startswith("/") and not words[0].startswith(THERE):
            found[words[0]] = words[2]
    return found


def without_caches(entry):
    return None if "__pycache__" in entry.name else entry


def pack(top, build, archive):
    """Returns (bytes of the archive, programs that are not built, the versions that it needs)."""
    mode = {".xz": "w:xz", ".gz": "w:gz"}.get(pathlib.Path(archive).suffix, "w")
    libraries, packed = {}, [name for name in PROGRAMS if (build / name).exists()]
    for name in packed:
        libraries.update(needed(build / name))
    versions = needs.newest([*(build / name for name in packed), *libraries.values()])
    with tarfile.open(archive, mode) as tar, tempfile.TemporaryDirectory() as folder:
        for name in [*packed, *(name for name in MANIFESTS if (build / name).exists())]:
            tar.add(build / name, f"gpu-check/build/gpu/{name}")
        for name, path in sorted(libraries.items()):
            tar.add(pathlib.Path(path).resolve(), f"gpu-check/build/gpu/{LIBRARIES}/{name}")
        for name in [*SCRIPTS, *(path.relative_to(top) for path in keep.files(top))]:  # so that kept results are not measured again
            tar.add(top / name, f"gpu-check/{name}", filter=without_caches)
        # Programs with an RPATH need no LD_LIBRARY_PATH, through which PyTorch would load these libraries, too.
        finds = f"$ORIGIN/../{LIBRARIES}".encode() in (build / "bin/prun").read_bytes()
        needs.write(pathlib.Path(folder, needs.FILE), versions, "" if finds else f"build/gpu/{LIBRARIES}")
        tar.add(pathlib.Path(folder, needs.FILE), f"gpu-check/{needs.FILE}")
    return pathlib.Path(archive).stat().st_size, [name for name in PROGRAMS if name not in packed], versions


def built(options):
    """Builds in options.build. Returns "" or the error."""
    from gpu_check.build import PART
    from gpu_check.check import perform
    from gpu_check.context import Context
    from gpu_check.machine import describe
    context = Context(options, describe(options.device, options.torch))
    for check in PART.checks(context):
        result = perform(context, PART, check)
        print(f"{check.name}: {result.figure or result.note}", flush=True)
        if result.status != PASS:
            return f"{result.note}{f' (log: {result.log})' if result.log else ''}"
    return ""


def build_and_pack(top, options):
    """Returns the exit status of --pack."""
    start = time.monotonic()
    problem = "" if options.prun else built(options)
    if problem:
        print(f"gpu-check: --pack: {problem}", file=sys.stderr)
        return 2
    size, missing, versions = pack(top, options.build, options.pack)
    print(f"{options.pack}: {size / 2**20:.1f} MiB in {time.monotonic() - start:.0f} s{', without ' + ', '.join(missing) if missing else ''}\n"
          f"it needs {' and '.join(f'{name} {version}' for name, version in versions.items())} or newer there\n"
          f"there: tar xf {options.pack.name} && gpu-check/tools/gpu-check --budget 150")
    if size > MOST_MIB << 20 and options.pack.suffix != ".tar":
        print(f"gpu-check: --pack: {size / 2**20:.1f} MiB are more than the {MOST_MIB} that travel well; fewer --architectures make it smaller", file=sys.stderr)
        return 1
    return 0
