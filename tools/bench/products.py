#!/usr/bin/env python3
"""GEMMs of the CPU device against other libraries: all sides alternately, medians, one thread on one core.

    tools/bench/products.py --torch PYTHON                      # all shapes, f32 and bf16, at this CPU's instruction set
    tools/bench/products.py --torch PYTHON --isa AVX2           # as a CPU without AVX-512 computes them
    tools/bench/products.py --shapes gpt,llama --types f32      # some only; without --torch against OpenBLAS and BLIS

Shapes are those of the shipped plans, GPT-2 124M and Llama 1B, each as forward (x·w), dx (dy·wᵀ) and dw (xᵀ·dy). Needs
`cmake --preset bench && ninja -C build/bench product_bench` and the packages libopenblas0-pthread and libblis4-pthread.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys

import rows

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "build/bench/bin/product_bench"
PEER = HERE / "peers/products_peer.py"
BAR = 0.97  # relative to the fastest peer

# name: (rows of x, [(out, in), ..])
SHAPES = {
    "gpt": (1024, [(768, 256), (256, 256), (1024, 256), (256, 1024)]),
    "mlp": (512, [(1024, 1024)]),
    "ddp_example": (1000, [(4000, 4000)]),
    "gpt2": (256, [(2304, 768), (768, 768), (3072, 768), (768, 3072)]),
    "gpt2_long": (1024, [(2304, 768), (768, 768), (3072, 768), (768, 3072)]),
    "llama": (256, [(3072, 2048), (2048, 2048), (8192, 2048), (2048, 8192)]),
}
FORMS = ["x·w", "dy·wᵀ", "xᵀ·dy"]
# Environment that restricts each library to an instruction set; BLIS 0.9 uses the numbers of its arch_t.
LIMITS = {"AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell", "BLIS_ARCH_TYPE": "3",
                   "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
          "AVX512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "BLIS_ARCH_TYPE": "0", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}}
# Operands are on large pages as in a rank's arena, including glibc's allocations for the peers.
ONE_THREAD = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "BLIS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def products(names):
    for name in names:
        rows, layers = SHAPES[name]
        for out, into in layers:
            yield from ((name, *shape, form) for form, shape in enumerate([(rows, out, into), (rows, into, out), (into, out, rows)]))


class Side:
    def __init__(self, name, command, env):
        self.name, self.process = name, subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = self.process.stdout.readline().strip()
        if not self.said:
            sys.exit(f"{name} did not start; its package or --torch is missing")

    def seconds(self, *shape):
        print(*shape, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        return None if answer == "-" else float(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="Python with PyTorch (MKL and its own oneDNN)")
    parser.add_argument("--isa", choices=LIMITS, help="leave out what this instruction set has not")
    parser.add_argument("--shapes", type=rows.names(SHAPES), default=",".join(SHAPES), help="of: " + ", ".join(SHAPES))
    parser.add_argument("--types", type=rows.names(["f32", "bf16"]), default="f32,bf16")
    parser.add_argument("--panels", action="store_true", help="prun's backend with panels, whatever its table chooses")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=0, help="the core that all run on")
    rows.add_option(parser)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"} | ONE_THREAD | LIMITS.get(args.isa, {})
    own = Side("prun", [str(BENCH)] + (["panels"] if args.panels else []), env)
    peers = [Side(name, [sys.executable, str(PEER), name], env) for name in ("openblas", "blis")]
    if args.torch:
        peers.append(Side("torch", [args.torch, str(PEER), "torch"], env))
    peaks = [float(word) / 1e9 for word in own.said.split()]
    isa, out = args.isa or "all its instructions", rows.File(args.json)
    print(f"{rows.cpu_name()}, {isa}; one core, GFLOP/s; multiply-add peak {peaks[0]:.0f} in f32, {peaks[1]:.0f} in bf16")
    ratios = []
    for half in (t == "bf16" for t in args.types):
        for name, m, n, k, form in products(args.shapes):
            shape = (m, n, k, form, int(half))
            rounds = [[side.seconds(*shape) for side in (own, *peers)] for _ in range(args.rounds)]
            medians = [None if None in side else statistics.median(side) for side in zip(*rounds)]
            rates = [None if s is None else 2e-9 * m * n * k / s for s in medians]
            peers_rates = {peer.name: rate for peer, rate in zip(peers, rates[1:]) if rate is not None}
            best = max(peers_rates.values(), default=None)
            ratio = None if best is None else rates[0] / best
            ratios += [] if ratio is None else [ratio]
            named = max(peers_rates, key=peers_rates.get, default=None)
            out.tell(rows.compared(f"{name} {m} × {n} × {k} {FORMS[form]} {'bf16' if half else 'f32'}, {isa}", "GFLOP/s", rates[0], named, best, BAR,
                                   more_is_better=True, limit=f"peak {peaks[half]:.0f} GFLOP/s", share=rates[0] / peaks[half]))
    if ratios:
        print(f"\n{sum(r >= BAR for r in ratios)} of {len(ratios)} reach {BAR} of the fastest; the median ratio is {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
