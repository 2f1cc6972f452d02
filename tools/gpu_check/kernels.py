"""Compares GEMM and attention kernels with the best of cuBLASLt and cuDNN for the same work (`cuda_kernel_bench`).

Other kernels are measured for information (`kernels-figures`). There are two passes: with options that let prun sum in any order, as the libraries may, and with prun's defaults.
"""
import functools

from gpu_check.bars import ATTENTION, BARS, GEMM, KERNELS, OTHER_ATTENTION, OTHER_GEMM
from gpu_check.check import Check, Part, Verdict
from gpu_check.gpt2 import FAST
from gpu_check.pytorch import measured
from gpu_check.results import NotPossible


def ratios(rows):
    """Returns {shape: our time / the library's best time} for the shapes that have a bar."""
    return {f"{row['group']} {row['what']}": row["ours_us"] / row["best_us"] for row in rows if row["judged"] and row["best_us"] > 0}


def table_of(rows, over_plain):
    table = [["model", "op", "ours, µs", "best, µs", "ratio", "ratio by default", "TFLOP/s", "the best is"]]
    for row in rows:
        ratio = row["ours_us"] / row["best_us"] if row["best_us"] > 0 else None
        by_default = over_plain.get(f"{row['group']} {row['what']}")
        rate = row["flops"] / row["ours_us"] * 1e-6 if row["ours_us"] > 0 else 0
        table.append([row["group"], row["what"], f"{row['ours_us']:.1f}", f"{row['best_us']:.1f}" if ratio else "none", f"{ratio:.3f}" if ratio else "",
                      f"{by_default:.3f}" if by_default else "", f"{rate:.1f}", row["best"] or row["problem"]])
    return table


def kernels(context, name, family, library, only):
    context.need_gpu()
    bar = BARS.get(name, "")
    bench = context.need_file(context.build / "bin/cuda_kernel_bench", "not built with the CUDA device")
    words = [bench, "--family", family, "--only", only, *(["--small"] if context.small else ["--quick"])]
    file = f"{family}_{only.replace(' ', '_')}"
    done, found = measured(context, f"{file}.json", [*words, "--options", FAST])
    if "is not measured by this program" in done.err:
        raise NotPossible(done.last_words(1))
    rows = found["rows"] if found else []
    problems = [f"{row['group']} {row['what']}: {row['problem']}" for row in rows if row["problem"]] + ([] if done.ok else [done.why()])
    plain = []
    if rows and done.status in (0, 1):
        done, found = measured(context, f"{file}_by_default.json", words)
        plain = found["rows"] if found else []
        problems += [] if done.ok else [f"by default: {done.why()}"]
    over, over_plain = ratios(rows), ratios(plain)
    table = table_of(rows, over_plain)
    if not bar:
        return Verdict(not problems and bool(rows), f"{len(rows)} figures, for information", "", "; ".join(problems), table)
    if not over:
        return Verdict(False, "", bar, "; ".join(problems) or f"{library} has none of the shapes", table if rows else [])
    worst = max(over, key=over.get)
    slow = [f"{shape} {ratio:.2f} ×" for shape, ratio in over.items() if ratio > KERNELS]
    kept = sum(ratio <= KERNELS for ratio in over_plain.values())
    return Verdict(not problems and not slow, f"{len(over) - len(slow)} of {len(over)} shapes hold with {FAST}, at most {over[worst]:.3f} × ({worst}); "
                   f"by default {kept} of {len(over_plain)}", bar, "; ".join(slow + problems), table)


def check(name, family, library, only):
    return Check(name, functools.partial(kernels, name=name, family=family, library=library, only=only), timeout=120, least=15)


def of_the_step(_context):
    return [check(GEMM, "gemm", "cuBLASLt", "GPT-2 124M"), check(ATTENTION, "attention", "cuDNN", "GPT-2 124M")]


def of_figures(_context):
    attention = [check(f"attention of {model}", "attention", "cuDNN", model) for model in RULES]
    return [*attention, check("experts", "experts", "cuBLASLt", ""), check("other kernels", "memory", "cuBLASLt", "")]


def of_others(_context):
    return [check(OTHER_GEMM, "gemm", "cuBLASLt", "Llama"), check(OTHER_ATTENTION, "attention", "cuDNN", "Llama")]


RULES = ("Mistral", "DeepSeek", "Gemma", "packed", "BERT")  # windows, wide heads, softcap, documents, a mask
USES = ("kernel_bench", "cuda")
PART = Part("kernels", "GEMM and attention at the sizes of GPT-2's step", of_the_step, limit=110, uses=USES)
OTHERS = Part("kernels-rest", "GEMM and attention of larger models", of_others, limit=150, uses=USES)
FIGURES = Part("kernels-figures", "kernels without a bar: attention with rules, experts, other kernels against copies", of_figures, limit=180, uses=USES)
