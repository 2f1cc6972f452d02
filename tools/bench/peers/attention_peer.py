#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention, for kernels.py: reads lines "attention|attention_grad bf16 tokens" and
answers each with CPU seconds.

Shapes are those of kernel_bench: 1024 tokens in total, 4 heads of 64, causal, with q, k and v as columns of one tensor.
One thread. The gradient excludes the forward pass and covers all three inputs, each as a separate tensor.
"""
import sys

import torch
import torch.nn.functional as F
from products_peer import seconds_of

TOKENS, HEADS, HEAD = 1024, 4, 64


def case(kernel, half, length):
    def heads(x):
        return x.view(TOKENS // length, length, HEADS, HEAD).transpose(1, 2)

    all_three = torch.randn(TOKENS // length, length, 3 * HEADS * HEAD, dtype=torch.bfloat16 if half else torch.float32)
    of = [heads(part).detach() for part in all_three.split(HEADS * HEAD, dim=2)]
    if kernel == "attention":
        return lambda: F.scaled_dot_product_attention(*of, is_causal=True)
    for x in of:
        x.requires_grad_()
    with torch.enable_grad():
        y = F.scaled_dot_product_attention(*of, is_causal=True)
    dy = heads(torch.randn(TOKENS // length, length, HEADS * HEAD, dtype=y.dtype))
    return lambda: torch.autograd.grad(y, of, dy, retain_graph=True)


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(torch.__version__.split("+")[0], flush=True)
    for line in sys.stdin:
        kernel, half, length = line.split()
        print(seconds_of(case(kernel, half == "1", int(length))), flush=True)


if __name__ == "__main__":
    main()
