"""Which rounds of a bench count on a machine whose cores are shared with others that cannot be seen.

Cores of a virtual machine multiply and add at half their rate for seconds or minutes while a neighbour has the other
half. Who is bound by multiply-adds then loses more than who is not, so that such a round is fair to neither side.
product_bench (`cmake --preset bench`), where it is built, says at which rate the slowest core multiplies matrices,
before, within and after each round; rounds near the best rate of this CPU and instruction set that was ever seen are
taken, others measured again a few times, and then those that were disturbed least.
"""
import json
import os
import subprocess
import sys

import rows

BENCH = rows.TOP / "build/bench/bin/product_bench"
BEST = rows.TOP / "build/bench/best_product_rates.json"
NEAR = 0.9   # of the best rate: what a quiet machine keeps to
PRODUCT = "1024 768 256 0 0"  # a linear layer's of gpt in f32: product_bench's m n k form, and whether bf16
TRIES = 2    # as many rounds at most for each one that is asked for
WORSE = 0.8  # rows below it say so


def said_by(processes, product="", env=None):
    """The numbers that each of so many processes of product_bench says, all at once."""
    sides = [subprocess.Popen([BENCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for _ in range(processes)]
    for side in sides:
        side.stdin.write(product)
        side.stdin.close()
    return [[float(word) for word in side.stdout.read().split()] for side in sides if side.wait() == 0]


def peaks(processes, env=None):
    """FLOP/s of multiply-adds in registers, (f32, bf16), of so many processes at once."""
    return [tuple(said) for said in said_by(processes, env=env)]


def slowest_core():
    """FLOP/s of a product on the slowest of the cores, which is what ranks wait for; None without product_bench.

    Not of registers alone: a neighbour who shares a core's caches and decoder, and multiplies little, leaves those be.
    """
    if not BENCH.exists():
        return None
    m, n, k, *_ = (int(word) for word in PRODUCT.split())
    return min(2 * m * n * k / seconds for *_, seconds in said_by(len(os.sched_getaffinity(0)), PRODUCT + "\n"))


def best_rate(seen):
    """The best rate of this kind of core that this build has seen, with `seen`."""
    kind = f"{rows.cpu_name()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}"
    known = json.loads(BEST.read_text()) if BEST.exists() else {}
    if seen > known.get(kind, 0):
        known[kind] = seen
        BEST.write_text(json.dumps(known))
    return known[kind]


def measure(wanted, one_round, core_rate=slowest_core, best_of=best_rate):
    """([results], share): of `wanted` rounds, and the least rate of cores during any of them, as a share of the best.

    one_round(look) is a round and gives its result; it calls look() between its sides. The share is None where no rate
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
        del rates[:-1]  # a round begins where the one before has ended
        result = one_round(look)
        look()
        found.append((min(rates), result))
    taken = sorted(found, key=lambda each: -each[0])[:wanted]
    share = taken[-1][0] / best
    if len(found) > wanted:
        print(f"{len(found) - wanted} rounds did not count: others had the cores; those taken had {share:.0%} of their rate", file=sys.stderr)
    return [result for _, result in taken], share


def disturbed(share):
    """What a row says of it."""
    return {} if share is None or share >= WORSE else {"disturbed": share}
