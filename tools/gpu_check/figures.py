"""The issue's figures. Each is measured by a script of tools/bench, both sides in turn; here stand the bars."""
import json
import shutil
import sys

from gpu_check.check import Check, Step, Verdict
from gpu_check.results import NotPossible

HOST_US, IDLE, KERNELS, NCCL = 20, 0.01, 1.05, 1.02


def python_of(context):
    return context.options.torch or sys.executable


def training(context):
    context.need_gpu()
    probe = context.run(python_of(context), "-c", "import torch; assert torch.cuda.is_available(); print(torch.__version__)", timeout=120)
    if not probe.ok:
        raise NotPossible(f"no PyTorch with CUDA in {python_of(context)} (--torch PYTHON)")
    out = context.folder / "gpu_train.json"
    out.unlink(missing_ok=True)
    done = context.run(sys.executable, "tools/bench/gpu_train.py", "--prun", context.prun, "--torch", python_of(context), "--json", out)
    if not out.exists():
        return Verdict(False, bar="at least PyTorch's tokens/s", note=done.why())
    found = json.loads(out.read_text())
    plain, ours, theirs = found["prun"], found["prun_fast"], found["torch"]
    ratio, deterministic = (side["tokens_per_s"] / theirs["tokens_per_s"] for side in (ours, plain))
    mfu = [f"{side['mfu']:.1%}" if side["mfu"] is not None else "unknown" for side in (ours, theirs)]
    figure = (f"{ours['options']}: {ours['tokens_per_s']:,.0f} tokens/s, MFU {mfu[0]}; PyTorch {probe.out.strip()} {theirs['tokens_per_s']:,.0f}, MFU {mfu[1]}; "
              f"{found['batch']} samples a step, ratio {ratio:.2f}; with the same bits in every run {deterministic:.2f}")
    return Verdict(ratio >= 1, figure, "at least PyTorch's tokens/s", "" if ratio >= 1 else "slower")


def kernels(context):
    context.need_gpu()
    bench = context.need_file(context.build / "bin/cuda_kernel_bench", "not built with the CUDA device")
    out = context.folder / "kernels.json"
    out.unlink(missing_ok=True)
    done = context.run(bench, "--json", out)
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    over = {f"{row['group']} {row['what']}": row["ours_us"] / row["best_us"] for row in rows if row["best_us"] > 0}
    if not over:
        return Verdict(False, bar=f"within {KERNELS - 1:.0%} of the libraries' best", note=done.why())
    worst = max(over, key=over.get)
    slow = [f"{shape} {ratio:.2f} ×" for shape, ratio in over.items() if ratio > KERNELS]
    return Verdict(done.ok and not slow, f"{len(over)} shapes, at most {over[worst]:.3f} × the best ({worst})",
                   f"within {KERNELS - 1:.0%} of the libraries' best", "; ".join(slow) or ("" if done.ok else done.why()))


def overhead(context):
    """A step of a GPT large enough to keep the GPU busy for milliseconds; what prun says of its own host and of gaps."""
    context.need_gpu()
    settings = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "batch": 8, "steps": 60, "dtype": "bf16"}
    done, steps = context.train("plans/single.lua", 1, "cuda", settings=settings, timeout=300)
    if not done.ok:
        return Verdict(False, note=done.why())
    told = [step for step in steps[10:] if "host_us" in step and "idle" in step]
    if not told:
        return Verdict(False, note="the metrics have neither host_us nor idle")
    host = sorted(step["host_us"] for step in told)[len(told) // 2]
    idle = sorted(step["idle"] for step in told)[len(told) // 2]
    ok = host < HOST_US and idle < IDLE
    return Verdict(ok, f"host {host:.1f} µs a step, idle {idle:.2%} (medians of {len(told)})", f"under {HOST_US} µs, under {IDLE:.0%}",
                   "" if ok else "too much")


def collectives(context):
    context.need_gpu(2)
    where = context.options.nccl_tests or (shutil.which("all_reduce_perf") or "").rsplit("/", 1)[0]
    if not where:
        raise NotPossible("nccl-tests is not found (--nccl-tests FOLDER with all_reduce_perf)")
    out = context.folder / "nccl_tests.json"
    out.unlink(missing_ok=True)
    done = context.run(sys.executable, "tools/bench/nccl_tests.py", "--prun", context.prun, "--nccl-tests", where, "--ranks", context.gpus, "--json", out)
    if not out.exists():
        return Verdict(False, bar=f"within {NCCL - 1:.0%} of nccl-tests", note=done.why())
    rows = json.loads(out.read_text())["rows"]
    over = {f"{row['op']} {row['bytes']} B": row["prun_us"] / row["nccl_us"] for row in rows}
    worst = max(over, key=over.get)
    slow = [f"{name} {ratio:.2f} ×" for name, ratio in over.items() if ratio > NCCL]
    return Verdict(not slow, f"{len(rows)} sizes, at most {over[worst]:.3f} × ({worst})", f"within {NCCL - 1:.0%} of nccl-tests", "; ".join(slow))


def checks(_context):
    return [Check("GPT-2 124M in bf16 against PyTorch", training, timeout=420, least=180),
            Check("GEMM and attention shapes", kernels, timeout=240, least=60),
            Check("host overhead and idle GPU", overhead, timeout=300, least=60),
            Check("nccl against nccl-tests", collectives, timeout=420, least=120)]


STEP = Step("figures", "speed", checks)
