#!/usr/bin/env python3
"""The package of tools/gpu-check in a clean system: only Debian's base and Python 3, made by debootstrap.

There it must start, find its libraries, and report that there is no GPU. PRUN_GPU_PACKAGE names a package; by default
the programs of PRUN's build are packed, which find libraries by LD_LIBRARY_PATH alone (needs.json). PRUN_DEBOOTSTRAP
names a tree made by debootstrap, which is copied. Exits with 77 if it cannot run. Usage: chroot_test.py TOP PRUN
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TOP, PRUN = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
SKIPPED = 77
TINY = "--set layers=1 --set width=16 --set heads=1 --set context=8 --set batch=4 --set steps=1"


def skip(why):
    print(f"not tried: {why}")
    sys.exit(SKIPPED)


def mirror():
    """Returns apt's archive of the main component on this machine, and its suite."""
    done = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"], capture_output=True, text=True)
    codename = next((line.split("=")[1].strip('"') for line in pathlib.Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_CODENAME=")), "")
    return next(((line.split()[0], codename) for line in done.stdout.splitlines() if line.split()[1:] == [codename]), (None, codename))


def in_root(root, command, library_path=""):
    environment = f"PATH=/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH={library_path}"
    # The command has its own /proc, which ends with it.
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c",
                           f'mount -t proc proc "{root}/proc" && mount -t tmpfs shm "{root}/dev/shm" && exec env -i {environment} HOME=/root chroot "{root}" sh -c "$0"', command],
                          capture_output=True, text=True, timeout=300)


def expect(what, held, done):
    print(f"{'ok  ' if held else 'FAIL'} {what}")
    if not held:
        print(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    return held


def make_root(root):
    if "PRUN_DEBOOTSTRAP" in os.environ:
        subprocess.run(["cp", "-a", os.environ["PRUN_DEBOOTSTRAP"], root], check=True)
        return
    uri, codename = mirror()
    if uri is None:
        skip(f"apt has no index of {codename} (apt-get update)")
    made = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3", codename, root, uri], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"debootstrap failed: {(made.stdout + made.stderr).strip().splitlines()[-1:]}")


def main():
    if os.geteuid() != 0 or shutil.which("debootstrap") is None or shutil.which("apt-get") is None:
        skip("it needs root, apt and debootstrap")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "root")
        start = time.monotonic()
        make_root(root)
        print(f"a clean system in {time.monotonic() - start:.0f} s")
        package = pathlib.Path(os.environ.get("PRUN_GPU_PACKAGE", pathlib.Path(folder, "package.tar.gz")))
        if "PRUN_GPU_PACKAGE" not in os.environ:
            subprocess.run([sys.executable, TOP / "tools/gpu-check", "--prun", PRUN, "--pack", package], check=True, stdout=subprocess.DEVNULL)
        print(f"package: {package.stat().st_size / 2**20:.1f} MiB")
        subprocess.run(["tar", "xf", package, "-C", root / "tmp"], check=True)
        (root / "dev/shm").mkdir(exist_ok=True)
        path = json.loads((root / "tmp/gpu-check/needs.json").read_text())["library_path"]
        path = f"/tmp/gpu-check/{path}" if path else ""
        start, held = time.monotonic(), []
        done = in_root(root, "cd / && /tmp/gpu-check/tools/gpu-check --budget 150 --out /tmp/found --save /tmp/out")
        held.append(expect("without a GPU it ends with 2 and says so", done.returncode == 2 and "Nothing here ran on a GPU: no NVIDIA driver" in done.stdout, done))
        held.append(expect("its doctor names the missing driver", "1 pass" in next((line for line in done.stdout.splitlines() if " doctor " in line), ""), done))
        held.append(expect("its files are saved", {path.name for path in (root / "tmp/out").iterdir()} == {"report.md", "results.json", "files.tar.gz"}, done))
        done = in_root(root, "/tmp/gpu-check/tools/gpu-check --device cpu --only parity --plans single,ddp --ranks 1,2 --small --budget 150 --out /tmp/cpu")
        held.append(expect("it trains on the CPU there", done.returncode == 0 and "4 pass" in done.stdout, done))
        done = in_root(root, f"cd /tmp/gpu-check && build/gpu/bin/prun plans/ddp.lua --nproc 2 {TINY}", path)
        held.append(expect("ranks find the packed transport", done.returncode == 0 and "over shm" in done.stdout, done))
        for program in ("prun", "cuda_agreement_test", "cuda_kernel_bench"):
            if (root / "tmp/gpu-check/build/gpu/bin" / program).exists():
                done = in_root(root, f"ldd /tmp/gpu-check/build/gpu/bin/{program}", path)
                missing = [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]
                held.append(expect(f"{program} lacks only libraries of CUDA ({', '.join(missing) or 'none'})",
                                   all(name.startswith(("libcuda", "libcublas", "libcudnn")) for name in missing), done))
        needs = root / "tmp/gpu-check/needs.json"
        needs.write_text(needs.read_text().replace('"GLIBC": "2.', '"GLIBC": "9.'))
        done = in_root(root, "/tmp/gpu-check/tools/gpu-check --budget 150")
        held.append(expect("a package of a newer system is refused", done.returncode == 2 and "needs glibc 9." in done.stderr, done))
        print(f"{sum(held)} of {len(held)} hold, {time.monotonic() - start:.0f} s")
        return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
