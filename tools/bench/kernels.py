#!/usr/bin/env python3
"""The CPU device's kernels against their bounds: attention against GEMMs, the others against memory or arithmetic.

    tools/bench/kernels.py                        # all of kernel_bench
    tools/bench/kernels.py --only gelu --rounds 2
    tools/bench/kernels.py --only attention --torch PYTHON    # also PyTorch's attention, alternately on one thread

Needs `cmake --preset bench && ninja -C build/bench kernel_bench product_bench`. Rates are per second of CPU time of one
core. The memory bound is a stream of as many bytes (a copy, an update in place, a read) of the size nearest to the
kernel's, so that both are in the same cache, or in none. bounds.py computes the arithmetic bound from rates of the same
run. The slower of the two bounds a kernel. Attention's bar is the rate of a GEMM, its limit that of its own arithmetic.

Kernels and bounds are measured seconds apart, while neighbours on the same core come and go within tenths of a second.
Therefore everything is measured in several rounds of short repetitions in random order, and the least time of each
counts. Comparisons with PyTorch's attention are medians of alternating rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import bounds
import products
import rows

BUILD = rows.TOP / "build/bench/bin"
PEER = products.HERE / "peers/attention_peer.py"
ATTENTION_BAR = BAR = 0.8
STREAMS = ("copy", "read", "update")
REPETITIONS = 5  # of a benchmark per round
PRODUCT = (1024, 768, 256, 0)  # a GEMM of the gpt plans: m n k form
ARGUMENTS = {"attention": ["bf16", "tokens"], "attention_grad": ["bf16", "tokens"], "residual_norm": ["bf16", "backward", "as one"],
             "norm2_1m": [], "adamw_7m": [], "cast_7m": [], "adamw_cast_7m": []}


def words_of(name):
    """Splits a name such as attention/1/128 into (kernel, arguments as text, whether it is bf16)."""
    kernel, *values = name.split("/")
    names = ARGUMENTS.get(kernel, ["bf16"])
    said = [f"{value} {key}" if key == "tokens" else key for key, value in zip(names[1:], values[1:]) if key == "tokens" or value != "0"]
    half = bool(names) and values[:1] == ["1"]
    return kernel, ", ".join([*(["bf16" if half else "f32"] if names else []), *said]), half


def product_rates():
    """Returns the FLOP/s of a GEMM in f32 and bf16, and the register peaks of both."""
    text = "".join(" ".join(map(str, [*PRODUCT, half])) + "\n" for half in (0, 1)) * REPETITIONS
    lines = subprocess.run([BUILD / "product_bench"], input=text, check=True, capture_output=True, text=True).stdout.split("\n")
    m, n, k, _ = PRODUCT
    seconds = [float(line) for line in lines[1:-1]]
    return [2 * m * n * k / min(seconds[half::2]) for half in (0, 1)] + [float(peak) for peak in lines[0].split()]


class Machine:
    """The measured rates of a machine; `found`: kernel_bench's benchmarks by name."""

    def __init__(self, found, rates, tiles):
        self.products, self.peaks, self.tiles = rates[:2], rates[2:], tiles
        self.rates = {name.split("/")[1]: one["lanes"] / (one["cpu_time"] * 1e-6) for name, one in found.items() if name.startswith("rate/")}
        self.streams = {stream: {int(one["bytes"]): one["bytes"] / (one["cpu_time"] * 1e-6) for name, one in found.items() if name.startswith(stream + "/")}
                        for stream in STREAMS}


def is_bound(name):
    return name.split("/")[0] in (*STREAMS, "rate")


def row_of(name, found, machine):
    kernel, said, half = words_of(name)
    what, seconds = f"{kernel} {said}".strip(), found["cpu_time"] * 1e-6
    if "GFLOP/s" in found:
        rate = found["GFLOP/s"] * 1e9
        least = bounds.of_attention(kernel, half, rate * seconds, found["head"], machine.rates, machine.peaks, machine.tiles)
        return rows.compared(what, "GFLOP/s", rate / 1e9, "a GEMM", machine.products[half] / 1e9, ATTENTION_BAR, more_is_better=True,
                             limit=f"arithmetic {rows.number(rate * seconds / least / 1e9)} GFLOP/s", share=least / seconds)
    work, stream = bounds.kernel_of(kernel, half, backward="backward" in said)
    size = found["bytes"]
    least, bound = bounds.of_elements(work, stream, found["elements"], size, machine.rates, machine.streams)
    share = least / seconds
    return rows.alone(what, "GB/s", size / seconds / 1e9, f"≥ {BAR:.0%} of the limit", share >= BAR,
                      limit=f"{bound} {rows.number(size / least / 1e9)} GB/s", share=share)


def bench(pattern, seconds):
    """Returns kernel_bench's output for a pattern: (counters of each repetition, its context)."""
    words = [BUILD / "kernel_bench", f"--benchmark_filter={pattern}", f"--benchmark_min_time={seconds / REPETITIONS}", "--benchmark_format=json",
             f"--benchmark_repetitions={REPETITIONS}", "--benchmark_enable_random_interleaving=true"]
    done = json.loads(subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout)
    return [one for one in done["benchmarks"] if one["run_type"] == "iteration"], done["context"]


def listed(pattern):
    """Returns the names of the benchmarks that match a pattern."""
    words = [str(BUILD / "kernel_bench"), f"--benchmark_filter={pattern}", "--benchmark_list_tests"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()


def names_no_kernel(names):
    return all(is_bound(name) for name in names)


def least_of(benchmarks):
    found = {}
    for one in benchmarks:
        found[one["name"]] = min(one, found.get(one["name"], one), key=lambda each: each["cpu_time"])
    return found


def undisturbed(pattern, args):
    """Returns over all rounds ({name: counters of its least time}, the best product_rates(), whether the CPU has
    tiles).
    """
    found, rates = [], []
    for _ in range(args.rounds):
        rates.append(product_rates())
        one_round, context = bench(pattern, args.seconds)
        found += one_round
    in_order = sorted(found, key=lambda one: (one["family_index"], one["per_family_instance_index"]))
    return least_of(in_order), [max(rate) for rate in zip(*rates)], context["tiles"] == "1"


def beside_torch(found, args):
    """Returns rows of attention against PyTorch, measured alternately."""
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"} | products.ONE_THREAD
    torch = products.Side("PyTorch", [args.torch, str(PEER)], env)
    for name in (name for name, one in found.items() if "GFLOP/s" in one):
        kernel, half, tokens = name.split("/")
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(statistics.median(one["cpu_time"] * 1e-6 for one in bench(f"^{name}$", args.seconds)[0]))
            theirs.append(torch.seconds(kernel, half, tokens))
        gflop = found[name]["GFLOP/s"] * found[name]["cpu_time"] * 1e-6
        ours, theirs = statistics.median(ours), statistics.median(theirs)
        yield rows.compared(f"{kernel} {words_of(name)[1]}, against PyTorch", "GFLOP/s", gflop / ours, f"PyTorch {torch.said}", gflop / theirs,
                            more_is_better=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kernels whose name has this in it")
    parser.add_argument("--seconds", type=float, default=0.1, help="of repetitions for a kernel in a round")
    parser.add_argument("--torch", metavar="PYTHON", help="Python with PyTorch")
    parser.add_argument("--rounds", type=int, default=5, help="of all of it; of attention and PyTorch's in turn")
    rows.add_option(parser)
    args = parser.parse_args()
    if names_no_kernel(listed(args.only)):
        parser.error(f"--only: no kernel has '{args.only}' in its name")
    found, *rates_and_tiles = undisturbed(f"^({'|'.join(STREAMS)}|rate)/|{args.only}", args)
    machine, out = Machine(found, *rates_and_tiles), rows.File(args.json)
    for name, one in found.items():
        if not is_bound(name):
            out.tell(row_of(name, one, machine))
    if args.torch:
        for row in beside_torch(found, args):
            out.tell(row)
    return int(out.missed)


if __name__ == "__main__":
    sys.exit(main())
