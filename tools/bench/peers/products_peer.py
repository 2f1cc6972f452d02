#!/usr/bin/env python3
"""GEMMs of another library, for products.py: reads lines "m n k form bf16" and answers each with CPU seconds.

    products_peer.py openblas|blis|torch        form 0: x·w, 1: dy·wᵀ, 2: xᵀ·dy; one thread; "-" if unsupported
"""
import array
import ctypes
import sys
import time

LIBRARIES = {"openblas": "libopenblas.so.0", "blis": "libblis.so.4"}
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
SECONDS = 0.15  # of repetitions per answer


def blas_gemm(library):
    sgemm = ctypes.CDLL(library).cblas_sgemm
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def product(m, n, k, form, half):
        if half:
            return None
        a, b, c = (array.array("f", [0.25, -0.5, 0.75, -1.0]) * (count // 4 + 1) for count in (m * k, k * n, m * n))
        at = [ctypes.c_void_p(x.buffer_info()[0]) for x in (a, b, c)]
        rows_a, rows_b = (m if form == 2 else k), (k if form == 1 else n)

        def run(keep=(a, b, c)):
            sgemm(ROW_MAJOR, TRANSPOSED if form == 2 else PLAIN, TRANSPOSED if form == 1 else PLAIN, m, n, k, one, at[0], rows_a, at[1],
                  rows_b, zero, at[2], n)

        return run

    return product


def torch_product():
    import torch

    torch.set_num_threads(1)

    def product(m, n, k, form, half):
        dtype = torch.bfloat16 if half else torch.float32
        a = torch.randn(k, m, dtype=dtype).t() if form == 2 else torch.randn(m, k, dtype=dtype)
        b = torch.randn(n, k, dtype=dtype).t() if form == 1 else torch.randn(k, n, dtype=dtype)
        c = torch.empty(m, n, dtype=dtype)
        return lambda: torch.mm(a, b, out=c)

    return product


def seconds_of(run):
    run()
    times, end = [], time.thread_time() + SECONDS
    while len(times) < 3 or time.thread_time() < end:
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return sorted(times)[len(times) // 2]


def main():
    name = sys.argv[1]
    product = torch_product() if name == "torch" else blas_gemm(LIBRARIES[name])
    print("ready", flush=True)
    for line in sys.stdin:
        run = product(*(int(word) for word in line.split()))
        print("-" if run is None else seconds_of(run), flush=True)


if __name__ == "__main__":
    main()
