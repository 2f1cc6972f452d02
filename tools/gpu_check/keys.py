"""The dependencies of a result: hashes of the files that its check runs, the GPU, its driver, and library versions.

A rebuilt prun does not change the key of a kernel test, because that test runs other programs.
"""
import hashlib

FILES = {"prun": "bin/prun", "nccl": "lib/prun/plugins/nccl.so", "shm": "lib/prun/plugins/shm.so", "agreement": "bin/cuda_agreement_test",
         "kernel_bench": "bin/cuda_kernel_bench", "conform": "libexec/prun/prun_conform", "conform_device": "libexec/prun/prun_conform_device"}

MACHINE = ("device", "GPUs", "driver", "libraries", "sizes")  # the other names of a key are files


def path_of(context, name):
    if name == "cuda":
        return context.plugin
    if name == "prun":
        return context.prun
    return context.build / FILES[name] if name in FILES else context.top / name


def hash_of(path):
    """Returns 16 hexadecimal digits of the hash of a file, or of all files in a folder; "none" if neither exists."""
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        return "none"
    for file in files:
        digest.update(str(file.relative_to(path)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Keys:
    """Keys of one call; each file is hashed once."""

    def __init__(self, context):
        self.context, self.hashes = context, {}
        machine = context.machine
        self.machine = {"device": context.device, "GPUs": ", ".join(machine["gpus"]) or "none", "driver": machine["about"].get("driver", "none"),
                        "libraries": machine.get("versions", "unknown")} | ({"sizes": "small"} if context.small else {})

    def of(self, uses):
        for name in uses:
            if name not in self.hashes:
                self.hashes[name] = hash_of(path_of(self.context, name))
        return {**self.machine, **{name: self.hashes[name] for name in uses}}

    def changed(self, key):
        """Returns the names in a result's key whose values have changed."""
        now = self.of([name for name in key if name not in MACHINE])
        return sorted(name for name in now.keys() | key.keys() if now.get(name) != key.get(name))
