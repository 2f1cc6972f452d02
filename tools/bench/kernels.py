#!/usr/bin/env python3
"""The CPU device's kernels beside what bounds them: attention beside products, the others beside a copy of as many bytes.

    tools/bench/kernels.py                        # all of kernel_bench
    tools/bench/kernels.py --only gelu --seconds 0.05

Needs `cmake --preset bench && ninja -C build/bench kernel_bench product_bench`. Rates are per second of processor time of
one core. A kernel is compared with the copy whose size is nearest to its own: both are in the same cache, or in none.
"""
import argparse
import json
import math
import subprocess
import sys

import rows

BUILD = rows.TOP / "build/bench/bin"
ATTENTION_BAR = COPY_BAR = 0.8
PRODUCT = (1024, 768, 256, 0)  # of the gpt plans: m n k form
ARGUMENTS = {"attention": ["bf16", "tokens"], "attention_grad": ["bf16", "tokens"], "residual_norm": ["bf16", "backward", "as one"],
             "adamw_7m": [], "cast_7m": [], "adamw_cast_7m": []}


def words_of(name):
    """attention/1/128 as people say it: (kernel, its arguments as text, whether it is bf16)"""
    kernel, *values = name.split("/")
    names = ARGUMENTS.get(kernel, ["bf16"])
    said = [f"{value} {key}" if key == "tokens" else key for key, value in zip(names[1:], values[1:]) if key == "tokens" or value != "0"]
    half = bool(names) and values[:1] == ["1"]
    return kernel, ", ".join([*(["bf16" if half else "f32"] if names else []), *said]), half


def product_rates():
    text = "".join(" ".join(map(str, [*PRODUCT, half])) + "\n" for half in (0, 1))
    lines = subprocess.run([BUILD / "product_bench"], input=text, check=True, capture_output=True, text=True).stdout.split("\n")
    m, n, k, _ = PRODUCT
    return [2 * m * n * k / float(seconds) for seconds in lines[1:3]]


def row_of(name, found, copies, products):
    kernel, said, half = words_of(name)
    what = f"{kernel} {said}".strip()
    if "GFLOP/s" in found:
        rate = found["GFLOP/s"] * 1e9
        return rows.compared(what, "GFLOP/s", rate / 1e9, "a product", products[half] / 1e9, ATTENTION_BAR, more_is_better=True,
                             rate=[f"{'bf16' if half else 'f32'} peak a core", rate])
    size, seconds = found["bytes"], found["cpu_time"] * 1e-6
    nearest = min(copies, key=lambda other: abs(math.log(other / size)))
    share = size / seconds / copies[nearest]
    return rows.alone(what, "GB/s", size / seconds / 1e9, f"≥ {COPY_BAR:.0%} of the limit", share >= COPY_BAR,
                      limit=f"a copy of {nearest >> 10:,} KiB {rows.number(copies[nearest] / 1e9)} GB/s", share=share)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kernels whose name has this in it")
    parser.add_argument("--seconds", type=float, default=0.5, help="of repetitions for a kernel")
    rows.add_option(parser)
    args = parser.parse_args()
    words = [BUILD / "kernel_bench", f"--benchmark_filter=copy/|{args.only}", f"--benchmark_min_time={args.seconds}", "--benchmark_format=json"]
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
    found = {b["name"]: b for b in json.loads(done.stdout)["benchmarks"]}
    copies = {int(b["bytes"]): b["bytes"] / (b["cpu_time"] * 1e-6) for name, b in found.items() if name.startswith("copy/")}
    products, out = product_rates(), rows.File(args.json)
    for name, one in found.items():
        if name.startswith("copy/"):
            continue
        out.tell(row_of(name, one, copies, products))
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
