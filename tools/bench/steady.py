"""Selects the valid rounds of a benchmark on a machine whose cores are shared with invisible neighbours.

Cores of a virtual machine run FMAs at half their rate for seconds or minutes while a neighbour uses the other half.
FMA-bound programs then lose more than others, so such a round is unfair. product_bench (`cmake --preset bench`), if
built, measures the GEMM rate of the slowest core before, within and after each round. Rounds near the best rate ever
seen for this CPU and instruction set are used; others are repeated a few times, and then the least disturbed are used.
"""
import json
import os
import subprocess
import sys

import rows

BENCH = rows.TOP / "build/bench/bin/product_bench"
BEST = rows.TOP / "build/bench/best_product_rates.json"
NEAR = 0.9   # relative to the best rate; a quiet machine reaches it
PRODUCT = "1024 768 256 0 0"  # a linear layer of gpt in f32: product_bench's m n k form, and whether bf16
TRIES = 2    # upper bound of rounds per requested round
WORSE = 0.8  # rows below it report it


def said_by(processes, product="", env=None):
    """Returns the numbers printed by each of so many concurrent product_bench processes."""
    sides = [subprocess.Popen([BENCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for _ in range(processes)]
    for side in sides:
        side.stdin.write(product)
        side.stdin.close()
    return [[float(word) for word in side.stdout.read().split()] for side in sides if side.wait() == 0]


def peaks(processes, env=None):
    """Returns the FMA peaks in registers, (f32, bf16) in FLOP/s, of so many concurrent processes."""
    return [tuple(said) for said in said_by(processes, env=env)]


def slowest_core():
    """Returns the FLOP/s of a GEMM on the slowest core, for which ranks wait; None without product_bench.

    Register FMAs alone do not suffice: a neighbour who shares a core's caches and decoder but multiplies little does
    not slow them down.
    """
    if not BENCH.exists():
        return None
    m, n, k, *_ = (int(word) for word in PRODUCT.split())
    return min(2 * m * n * k / seconds for *_, seconds in said_by(len(os.sched_getaffinity(0)), PRODUCT + "\n"))


def best_rate(seen):
    """Returns the best rate of this kind of core that this build has seen, including `seen`."""
    kind = f"{rows.cpu_name()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}"
    known = json.loads(BEST.read_text()) if BEST.exists() else {}
    if seen > known.get(kind, 0):
        known[kind] = seen
        BEST.write_text(json.dumps(known))
    return known[kind]


def measure(wanted, one_round, core_rate=slowest_core, best_of=best_rate):
    """Returns ([results of the rounds], share): share is the least rate of cores during any of them relative to the best.

    one_round(look) runs a round and returns its result; it calls look() between its sides. The share is None if no rate
    can be measured.
    """
    found, rates, best = [], [], 0

    def look():
        nonlocal best
        rate = core_rate()
        if rate is not None:
            best = max(best, best_of(rate))
            rates.append(rate)

    look()
    if not rates:
        return [one_round(look) for _ in range(wanted)], None
    while len(found) < wanted * TRIES and sum(rate >= NEAR * best for rate, _ in found) < wanted:
        del rates[:-1]  # a round begins where the previous one ended
        result = one_round(look)
        look()
        found.append((min(rates), result))
    taken = sorted(found, key=lambda each: -each[0])[:wanted]
    share = taken[-1][0] / best
    if len(found) > wanted:
        print(f"{len(found) - wanted} rounds did not count: others had the cores; those taken had {share:.0%} of their rate", file=sys.stderr)
    return [result for _, result in taken], share


def disturbed(share):
    """Returns the fields of a row that report the disturbance."""
    return {} if share is None or share >= WORSE else {"disturbed": share}
