#!/usr/bin/env python3
"""Checks the kernels that nvcc compiled into cuda.so, without a GPU: machine code and PTX exist for every target, no kernel
spills registers, static shared memory fits every GPU, and memory-bound kernels keep as many loads in flight as they are
written for. The limits below hold for every target.

    kernel_resources_test.py LIBRARY ARCHITECTURE,...     e.g. cuda.so 80-real,90a-real,80-virtual
    kernel_resources_test.py LIBRARY ARCHITECTURE,... --show TEXT     prints the kernels whose names contain TEXT, too
"""
import argparse
import fnmatch
import sys

import machine_code

MOST_STATIC_SHARED = 48 << 10

# Local memory that is not a spill: an array that is indexed by a variable.
LOCAL_ARRAYS = {"init_params<*>": "element i of four random words", "interpret<*>": "result r of a program",
                "interpret_update<*>": "result r of a program"}

# (kernels, most bytes of stack). A GPU reserves the stack for every thread that can run at once, 270,336 of an H200: a
# kernel with 4,032 bytes took 1.1 GB that no prediction of memory counts.
STACKS = [("interpret_update<*, 48>", 384), ("*", 1472)]

# (kernels, least registers, most registers, loads in flight, least bytes of each such load). Too few registers show a
# kernel that nvcc compressed to run more threads, so that it waits for each load; too many reduce the occupancy below
# what __launch_bounds__ states.
LIMITS = [
    ("pointwise<*, 1, 1, *>", 24, 64, 4, 16),
    ("pointwise<*, 2, 1, *>", 24, 64, 4, 16),
    ("pointwise<bf16, 1, 1, Gelu*>", 37, 64, 4, 16),
    ("pointwise<bf16, 2, 1, SiluMul>", 34, 64, 4, 16),
    ("pointwise<*, 3, 2, SiluMulGrad>", 40, 64, 6, 16),
    ("cast_floats<float, bf16>", 24, 64, 4, 16),
    ("cast_floats<bf16, float>", 16, 64, 4, 8),
    ("add_bias<bf16, 8>", 33, 64, 4, 16),
    ("add_bias<float, 4>", 28, 64, 4, 16),
    ("sum_rows<bf16, 8>", 40, 64, 4, 16),
    ("sum_rows<float, 4>", 33, 64, 4, 16),
    ("sum_elements<*>", 33, 64, 4, 16),
    ("sum_chunks", 40, 64, 4, 16),
    ("look<float>", 40, 64, 4, 16),
    ("row_maxima<*>", 33, 64, 4, 16),
    ("row_sums<*>", 33, 64, 4, 16),
    ("log_sum_exp<bf16>", 48, 64, 4, 16),
    ("loss_and_gradient<bf16>", 48, 64, 4, 16),
    ("sum_samples<float, 4>", 33, 64, 4, 16),
    ("lse_of_rows<*>", 33, 64, 4, 16),
    ("lse_gradient<*>", 24, 64, 1, 16),
    ("kl_of_rows<*>", 33, 64, 4, 16),
    ("kl_gradient<*>", 33, 64, 4, 16),
    ("count_right<*>", 20, 64, 1, 16),
    ("sum_softmax<*>", 24, 64, 3, 2),
    ("scale_rows<*>", 24, 64, 2, 2),
    ("turn<bf16, 8, *>", 33, 64, 6, 16),
    ("make_angles", 24, 64, 1, 8),
    ("update<Adamw, float, *>", 40, 64, 4, 16),
    ("tensor_gemms<*>", 96, 128, 0, 16),  # of two blocks at once, so that one computes while the other waits for copies
    ("attend<bf16, 8, *, 1, 1>", 60, 84, 7, 16),
    ("attend<bf16, 8, *, 1, 4>", 128, 168, 8, 16),
    ("attend<float, 4, *>", 60, 168, 8, 16),
    ("add_rows<bf16, 4>", 96, 128, 14, 8),
    ("add_rows<bf16, 4>", 96, 128, 47, 2),  # of long runs
    ("add_rows<float, 4>", 96, 128, 15, 16),
    ("held_rows<bf16, true, false, 3>", 64, 80, 6, 8),  # gradients of norms
    ("held_rows<bf16, true, true, 3>", 64, 80, 9, 8),
    ("held_rows<bf16, false, false, 3>", 48, 64, 6, 8),
    ("held_rows<bf16, false, true, 3>", 48, 64, 9, 8),
    ("held_rows<bf16, true, true, 4>", 64, 80, 1, 8),  # of rows above 9,216
    ("held_rows<bf16, false, true, 4>", 48, 64, 1, 8),
    ("reduce_rows<bf16, *, 8, *>", 40, 64, 1, 16),
    ("reduce_columns<bf16, *, 8, *>", 48, 80, 1, 16),
    ("interpret<bf16, 8, *>", 33, 64, 1, 16),
    ("add_runs<bf16, 8>", 33, 64, 4, 16),
    ("gather_words<uint4>", 16, 64, 1, 16),
    ("softmax_short_rows<float, 16>", 33, 128, 12, 4),
    ("softmax_short_rows_grad<float, 16>", 33, 128, 21, 4),
    ("softmax_short_rows<float, 32>", 64, 255, 24, 4),
    ("softmax_short_rows_grad<float, 32>", 64, 255, 40, 4),
    ("transpose_tiles<unsigned int>", 33, 64, 6, 4),
    ("fill_columns<bf16, 8>", 33, 64, 0, 2),
    ("gather_chunk<bf16, 8>", 16, 64, 1, 16),
    ("dw_direct<float>", 33, 64, 4, 4),
    ("scatter_chunk<bf16, 8>", 16, 64, 2, 16),
]


def name_problems(kernels, limits=LIMITS):
    """Returns a sentence for each violated limit. kernels: [(target, name, Kernel)]."""
    problems = []
    for target, name, kernel in kernels:
        where = f"sm_{target} {name}"
        if kernel.spills and not any(fnmatch.fnmatchcase(name, pattern) for pattern in LOCAL_ARRAYS):
            problems.append(f"{where}: {kernel.spills} accesses to local memory, {kernel.frame} bytes of it: it spills")
        if kernel.shared > MOST_STATIC_SHARED:
            problems.append(f"{where}: {kernel.shared} bytes of static shared memory, at most {MOST_STATIC_SHARED}")
        most_stack = next(most for pattern, most in STACKS if fnmatch.fnmatchcase(name, pattern))
        if kernel.frame > most_stack:
            problems.append(f"{where}: {kernel.frame} bytes of stack, at most {most_stack}")
        for pattern, least, most, loads, size in limits:
            if not fnmatch.fnmatchcase(name, pattern):
                continue
            if not least <= kernel.registers <= most:
                problems.append(f"{where}: {kernel.registers} registers, not {least} to {most}")
            if kernel.loads[size] < loads:
                problems.append(f"{where}: {kernel.loads[size]} loads of {size} bytes in flight, at least {loads} are needed")
    names = {name for _, name, _ in kernels}
    for pattern, *_ in limits:
        if kernels and not fnmatch.filter(names, pattern):
            problems.append(f"'{pattern}' has limits, but there is no such kernel")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("architectures", type=lambda text: text.split(","))
    parser.add_argument("--show")
    arguments = parser.parse_args()
    numbers = [(int(text.split("-")[0].rstrip("af")), text) for text in arguments.architectures]
    wanted = {(machine_code.CODE, number) for number, text in numbers if not text.endswith("-virtual")}
    wanted |= {(machine_code.PTX, number) for number, text in numbers if not text.endswith("-real")}
    problems, kernels, compressed, demangled = [], [], 0, machine_code.Demangler()
    for number, found in enumerate(machine_code.fat_binaries(arguments.library)):
        missing = wanted - {(kind, target) for kind, target, _ in found}
        problems += [f"source {number} has no {'PTX' if kind == machine_code.PTX else 'code'} for {target}"
                     for kind, target in missing]
        for kind, target, data in found:
            if kind == machine_code.CODE and not data.startswith(b"\x7fELF"):
                compressed += 1  # nvcc 12 does that
            elif kind == machine_code.CODE:
                kernels += [(target, demangled(name), kernel) for name, kernel in machine_code.kernels_of(data).items()]
    if arguments.show is not None:
        for target, name, kernel in sorted(kernels, key=lambda each: (each[1], each[0])):
            if arguments.show in name:
                print(f"sm_{target} {name}: {kernel}")
    print(f"{len(kernels)} kernels checked"
          + (f"; {compressed} pieces of machine code are compressed and were not" if compressed else ""))
    problems += name_problems(kernels)
    if not kernels and not compressed:
        problems.append("there is no kernel")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
