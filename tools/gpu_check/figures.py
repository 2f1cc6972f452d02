"""The issue's figures. Each is measured by a program of tools/bench, both sides in turn; here stand the bars.

What was measured before a program failed or ran out of time counts: it writes its file after every measurement.
"""
import functools
import json
import shutil
import sys

from gpu_check.check import Check, Step, Verdict
from gpu_check.results import NotPossible

FAST = "deterministic=0,autotune=1"  # as gpu_train.py's --fast
HOST_US, IDLE, KERNELS, NCCL = 20, 0.01, 1.05, 1.02
TRAINING, HOST, GAPS = "GPT-2 124M in bf16 against PyTorch with torch.compile", "host time of a captured step", "idle GPU between steps"
PRODUCTS, ATTENTION, COLLECTIVES = "products of GPT-2 and Llama", "attention of GPT-2 and Llama", "nccl against nccl-tests"
NORMS = "norms with residuals, beside two ops and a copy"
BARS = {TRAINING: "at least PyTorch's tokens/s, MFU printed", HOST: f"under {HOST_US} µs", GAPS: f"under {IDLE:.0%}",
        PRODUCTS: f"within {KERNELS - 1:.0%} of cuBLASLt's best", ATTENTION: f"within {KERNELS - 1:.0%} of cuDNN's best",
        COLLECTIVES: f"within {NCCL - 1:.0%} of nccl-tests"}
OVERHEAD = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "batch": 8, "steps": 60, "dtype": "bf16"}
SMALL = {"layers": 2, "width": 64, "heads": 2, "context": 32, "batch": 8, "steps": 15, "dtype": "bf16"}  # --small
SMALL_GPT2 = ["--layers", 1, "--width", 64, "--heads", 2, "--context", 32, "--vocab", 512, "--batch", 4, "--steps", 3, "--warmup", 1, "--rounds", 1]


def python_of(context):
    return context.options.torch or sys.executable


def measured(context, name, words):
    """(how the program ended, what it had written to the file of its option --json by then)."""
    out = context.folder / name
    out.unlink(missing_ok=True)
    done = context.run(*words, "--json", out)
    try:
        return done, json.loads(out.read_text())
    except (OSError, ValueError):
        return done, None


def training(context):
    context.need_gpu()
    bar = BARS[TRAINING]
    done, found = measured(context, "gpu_train.json", [sys.executable, "tools/bench/gpu_train.py", "--prun", context.prun, "--torch", python_of(context),
                                                       *(SMALL_GPT2 if context.small else [])])
    if not found:
        return Verdict(False, bar=bar, note=done.why())
    sides = [found[name] for name in ("prun", "prun_fast", "torch") if found[name]]
    table = [["", "ms a step", "tokens/s", "model TFLOP/s", "MFU", "last loss"]]
    for side in sides:
        mfu = f"{side['mfu']:.1%}" if side["mfu"] is not None else "unknown"
        table.append([side["what"], f"{side['step_ms']:.2f}", f"{side['tokens_per_s']:,.0f}", f"{side['model_tflops']:.1f}", mfu, f"{side['last_loss']:.3f}"])
    figure = "; ".join(f"{row[0]}: {row[2]} tokens/s, MFU {row[4]}" for row in table[1:]) + f"; {found['batch']} samples a step"
    if not found["prun_fast"] or not found["torch"]:  # half a figure
        if found["prun_fast"] and found["no_torch"]:
            raise NotPossible(f"{found['no_torch']} (--torch PYTHON); {figure}")
        return Verdict(False, figure, bar, done.why(), table)
    ratio, deterministic = (found[name]["tokens_per_s"] / found["torch"]["tokens_per_s"] for name in ("prun_fast", "prun"))
    problem = "slower" if ratio < 1 else "not the PyTorch that was asked for" if "without torch.compile" in found["torch"]["what"] else ""
    return Verdict(not problem, f"{figure}; {ratio:.3f} × PyTorch, with the same bits in every run {deterministic:.3f} ×", bar, problem, table)


def ratios(rows):
    """{shape: ours by the library's best} of those that are held to it."""
    return {f"{row['group']} {row['what']}": row["ours_us"] / row["best_us"] for row in rows if row["judged"] and row["best_us"] > 0}


def kernels(context, name, family, library):
    """Held to the library's best with the options that let prun add in any order, too, as the best may; shown also as it is.
    `library` "": of what no library has; shown, and held to nothing."""
    context.need_gpu()
    bar = BARS.get(name, "")
    bench = context.need_file(context.build / "bin/cuda_kernel_bench", "not built with the CUDA device")
    words = [bench, "--family", family, *(["--small"] if context.small else [])]
    done, found = measured(context, f"{family}.json", [*words, "--options", FAST] if library else words)
    rows = found["rows"] if found else []
    problems = [f"{row['group']} {row['what']}: {row['problem']}" for row in rows if row["problem"]] + ([] if done.ok else [done.why()])
    plain = []
    if library and rows and done.status in (0, 1):
        done, found = measured(context, f"{family}_as_it_is.json", words)
        plain = found["rows"] if found else []
        problems += [] if done.ok else [f"as it is: {done.why()}"]
    over, over_plain = ratios(rows), ratios(plain)
    table = [["model", "op", "ours, µs", "best, µs", "ratio", "ratio as it is", "TFLOP/s", "the best is"]]
    for row in rows:
        ratio = row["ours_us"] / row["best_us"] if row["best_us"] > 0 else None
        as_it_is = over_plain.get(f"{row['group']} {row['what']}")
        rate = row["flops"] / row["ours_us"] * 1e-6 if row["ours_us"] > 0 else 0
        table.append([row["group"], row["what"], f"{row['ours_us']:.1f}", f"{row['best_us']:.1f}" if ratio else "none", f"{ratio:.3f}" if ratio else "",
                      f"{as_it_is:.3f}" if as_it_is else "", f"{rate:.1f}", row["best"] or row["problem"]])
    if not library:
        return Verdict(bool(rows) and not problems, f"{len(rows)} ops", bar, "; ".join(problems), table)
    if not over:
        return Verdict(False, "", bar, "; ".join(problems) or f"{library} has none of the shapes", table if rows else [])
    worst = max(over, key=over.get)
    slow = [f"{shape} {ratio:.2f} ×" for shape, ratio in over.items() if ratio > KERNELS]
    kept = sum(ratio <= KERNELS for ratio in over_plain.values())
    return Verdict(not problems and not slow, f"{len(over) - len(slow)} of {len(over)} shapes hold with {FAST}, at most {over[worst]:.3f} × ({worst}); "
                   f"as it is {kept} of {len(over_plain)}", bar, "; ".join(slow + problems), table)


def steps_of(context):
    """Those that count of a GPT large enough to keep the GPU busy for milliseconds; measured once for all that ask."""
    context.need_gpu()
    if context.steps is None:
        done, steps = context.train("plans/single.lua", 1, "cuda", settings=SMALL if context.small else OVERHEAD, timeout=150)
        context.steps = (done, [step for step in steps[10:] if "host_us" in step and "idle" in step])
    done, steps = context.steps
    if not done.ok or not steps:
        raise RuntimeError(done.why() if not done.ok else "the metrics have neither host_us nor idle")
    return steps


def overhead(context, name, key, text, limit):
    values = sorted(step[key] for step in steps_of(context))
    median, ninth = values[len(values) // 2], values[len(values) * 9 // 10]
    figure = f"{text(median)} (median of {len(values)} steps; nine of ten under {text(ninth)})"
    return Verdict(median < limit, figure, BARS[name], "" if median < limit else "too much")


def collectives(context):
    context.need_gpu(2)
    where = context.options.nccl_tests or (shutil.which("all_reduce_perf") or "").rsplit("/", 1)[0]
    if not where:
        raise NotPossible("nccl-tests is not found (--nccl-tests FOLDER with all_reduce_perf)")
    bar = BARS[COLLECTIVES]
    done, found = measured(context, "nccl_tests.json", [sys.executable, "tools/bench/nccl_tests.py", "--prun", context.prun, "--nccl-tests", where,
                                                        "--ranks", context.gpus, *(["--most", 65536, "--rounds", 1] if context.small else [])])
    rows = found["rows"] if found else []
    if not rows:
        return Verdict(False, bar=bar, note=done.why())
    table = [["collective", "bytes", "prun, µs", "nccl-tests, µs", "ratio"]]
    over = {}
    for row in rows:
        over[f"{row['op']} {row['bytes']} B"] = row["prun_us"] / row["nccl_us"]
        table.append([row["op"], str(row["bytes"]), f"{row['prun_us']:.1f}", f"{row['nccl_us']:.1f}", f"{row['prun_us'] / row['nccl_us']:.3f}"])
    worst = max(over, key=over.get)
    slow = [f"{name} {ratio:.2f} ×" for name, ratio in over.items() if ratio > NCCL] + ([done.why()] if done.status not in (0, 1) else [])
    return Verdict(not slow, f"{len(rows)} sizes, at most {over[worst]:.3f} × ({worst})", bar, "; ".join(slow), table)


def checks(_context):
    host = functools.partial(overhead, name=HOST, key="host_us", text="{:.1f} µs".format, limit=HOST_US)
    gaps = functools.partial(overhead, name=GAPS, key="idle", text="{:.2%}".format, limit=IDLE)
    return [Check(TRAINING, training, timeout=420, least=180), Check(HOST, host, timeout=180, least=60), Check(GAPS, gaps, timeout=180, least=60),
            Check(PRODUCTS, functools.partial(kernels, name=PRODUCTS, family="gemm", library="cuBLASLt"), timeout=300, least=60),
            Check(ATTENTION, functools.partial(kernels, name=ATTENTION, family="attention", library="cuDNN"), timeout=240, least=60),
            Check(COLLECTIVES, collectives, timeout=420, least=120),
            Check(NORMS, functools.partial(kernels, name=NORMS, family="norm", library=""), timeout=60, least=20)]


STEP = Step("figures", "speed", checks)
