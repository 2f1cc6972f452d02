#!/usr/bin/env python3
"""Memory per rank and bytes on the wire of the data-parallel strategies equal the formulas of
lua/prun/strategies/README.md exactly; Ψ: padded parameters. zero1 and zero2 store the gradient shard in addition to the
unreduced gradients: 6Ψ + 16Ψ/N in bf16. zero3 stores 1/N of everything, plus (prefetch + 1) gathered units and
(inflight + 1) unreduced gradients. One rank holds the whole shard: it gathers and reduces nothing, and keeps parameters
in bf16 and f32. Usage: sharding_test.py PRUN
"""
import pathlib
import sys
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import check  # noqa: E402

LINE = 32  # elements of a cache line; every tensor of a flat vector is padded to it
F32 = 4
LOSS_AND_NORM = 3  # elements of 4 bytes: the loss is an f32, the norm of gradients an f64
CASES = [dict(layers=2, width=64, heads=2, context=16), dict(layers=3, width=60, heads=3, context=33)]
CASES3 = CASES + [dict(layers=4, width=256, heads=4, context=128), dict(layers=1, width=8, heads=2, context=7)]
EACH = [(case, ranks) for case in CASES for ranks in (1, 2, 3, 4)]


def up(value, step):
    return -(-value // step) * step


def units(layers, width, context, heads, vocab=256):
    """Returns the parameter sizes of each unit of a gpt, in order of use."""
    d = width
    block = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    return [[vocab * d, context * d]] + [block] * layers + [[d, d, d * vocab]]


def shards(case, ranks, keep=lambda size: True):
    """Returns a rank's elements of each unit, counting the parameters for which keep(bytes) is true."""
    kept = [[size for size in unit if keep(size * F32)] for unit in units(**case)]
    return [up(-(-sum(up(size, LINE) for size in unit) // ranks), LINE) for unit in kept if unit]


def whole(case, keep=lambda size: True):
    return sum(up(size, LINE) for unit in units(**case) for size in unit if keep(size * F32))


def all_reduce(elements, ranks):
    return 2 * (ranks - 1) / ranks * elements * F32


class Sharding(unittest.TestCase):
    def roles(self, got, **expected):
        self.assertEqual({role: got["roles"][role] for role in expected}, {role: round(bytes_) for role, bytes_ in expected.items()})

    def test_ddp_has_everything_and_all_reduces_it_once(self):
        for case, ranks in EACH:
            with self.subTest(ranks=ranks, **case):
                got, psi = check(PRUN, "plans/ddp.lua", ranks, batch=2 * ranks, **case)[0], whole(case)
                self.roles(got, param=F32 * psi, grad=F32 * psi, optimizer=2 * F32 * psi, gathered=0, reduce=0)
                self.assertEqual(got["wire_bytes_per_step"]["dp"], round(all_reduce(psi, ranks) + all_reduce(1, ranks)))

    def test_ddp_communicates_in_the_last_microbatch_only(self):
        one, four = (check(PRUN, "plans/ddp.lua", 2, batch=8, micro=micro, **CASES[0])[0]["wire_bytes_per_step"] for micro in (1, 4))
        self.assertEqual(one, four)

    def test_zero1_splits_the_optimizer(self):
        for dtype, wide in (("f32", 4), ("bf16", 2)):
            for case, ranks in EACH:
                with self.subTest(ranks=ranks, **case):
                    for micro in (1, 2):
                        got = check(PRUN, "plans/zero1.lua", ranks, batch=2 * ranks, micro=micro, dtype=dtype, **case)[0]
                        shard = sum(shards(case, ranks))
                        psi = shard * ranks
                        if ranks == 1:
                            self.roles(got, param=(F32 + wide % F32) * psi, gathered=0, grad=F32 * psi, optimizer=2 * F32 * psi)
                        else:
                            self.roles(got, param=F32 * shard, gathered=wide * psi, grad=F32 * (psi + shard), optimizer=2 * F32 * shard)
                        wire = (ranks - 1) * (F32 + wide) * shard + all_reduce(LOSS_AND_NORM, ranks)  # reduce-scatter, all-gather
                        self.assertEqual(got["wire_bytes_per_step"]["dp"], round(wire))

    def test_zero2_splits_gradients_too(self):
        for dtype, wide in (("f32", 4), ("bf16", 2)):
            for case, ranks in EACH:
                with self.subTest(ranks=ranks, **case):
                    for micro in (1, 2):
                        got = check(PRUN, "plans/zero2.lua", ranks, batch=2 * ranks, micro=micro, dtype=dtype, **case)[0]
                        sizes = shards(case, ranks)
                        shard, unreduced = sum(sizes), 2 * max(sizes) * ranks  # inflight 1
                        if micro > 1:
                            unreduced += max(sizes)  # the scattered gradient that is added to the shard
                        if ranks == 1:
                            self.roles(got, param=(F32 + wide % F32) * shard, gathered=0, grad=F32 * shard, optimizer=2 * F32 * shard,
                                       reduce=0)
                        else:
                            self.roles(got, param=F32 * shard, gathered=wide * shard * ranks, grad=F32 * shard,
                                       optimizer=2 * F32 * shard, reduce=F32 * unreduced)
                        wire = (ranks - 1) * (micro * F32 + wide) * shard + all_reduce(LOSS_AND_NORM, ranks)
                        self.assertEqual(got["wire_bytes_per_step"]["dp"], round(wire))

    def test_zero3_splits_all_but_what_is_in_flight(self):
        for case in CASES3:
            for ranks in (1, 2, 3, 8):
                with self.subTest(ranks=ranks, **case):
                    got, sizes = check(PRUN, "plans/zero3.lua", ranks, batch=2 * ranks, **case)[0], shards(case, ranks)
                    state, largest = F32 * sum(sizes), F32 * max(sizes) * ranks if ranks > 1 else 0
                    self.roles(got, param=state, grad=state, optimizer=2 * state, gathered=2 * largest, reduce=2 * largest)
                    # Forward gathers all units; backward gathers neither the head (kept), nor the block before it
                    # (still in its slot), nor the embedding (not read). All gradients are scattered.
                    wire = (ranks - 1) * F32 * (2 * sum(sizes) + sum(sizes[1:-2])) + all_reduce(LOSS_AND_NORM, ranks)
                    self.assertEqual(got["wire_bytes_per_step"]["dp"], round(wire))

    def test_zero3_is_an_eighth_of_single(self):
        single, split = (check(PRUN, f"plans/{plan}.lua", ranks, batch=8, **CASES3[2])[0]["roles"]
                         for plan, ranks in (("single", 1), ("zero3", 8)))
        for role in ("param", "grad", "optimizer"):
            self.assertLessEqual(split[role] * 8 - single[role], 6 * 8 * LINE * F32 * 2)
            self.assertGreaterEqual(split[role] * 8, single[role])

    def test_zero3_that_keeps_parameters_is_zero2(self):
        for case, ranks in EACH:
            with self.subTest(ranks=ranks, **case):
                got, like = (check(PRUN, f"plans/{plan}.lua", ranks, batch=2 * ranks, **case, **more)[0]
                             for plan, more in (("fsdp", dict(reshard_after_forward=False)), ("zero2", {})))
                self.assertEqual({**got["roles"], "activation": 0}, {**like["roles"], "activation": 0})
                self.assertEqual(got["wire_bytes_per_step"]["shard"], like["wire_bytes_per_step"]["dp"])

    def test_hybrid_shards_in_groups_and_all_reduces_shards(self):
        for case in CASES:
            for replicate, ranks in ((2, 4), (2, 6), (3, 6), (4, 4)):
                with self.subTest(replicate=replicate, ranks=ranks, **case):
                    got = check(PRUN, "plans/fsdp.lua", ranks, batch=2 * ranks, replicate=replicate, **case)[0]
                    group = ranks // replicate
                    alone = check(PRUN, "plans/fsdp.lua", group, batch=2 * group, **case)[0]
                    shard = sum(shards(case, group))
                    self.roles(got, param=F32 * shard, grad=F32 * shard, optimizer=2 * F32 * shard)
                    self.assertEqual(got["roles"]["gathered"], alone["roles"]["gathered"])
                    self.assertEqual(got["wire_bytes_per_step"]["shard"], alone["wire_bytes_per_step"]["shard"])
                    self.assertEqual(got["wire_bytes_per_step"]["replicate"],
                                     round(all_reduce(shard, replicate) + all_reduce(1, replicate)))

    def test_groups_keep_what_was_gathered_between_them(self):
        for case in CASES3:
            for groups, ranks in ((2, 4), (2, 8), (3, 6)):
                for micro in (1, 2):
                    with self.subTest(groups=groups, ranks=ranks, micro=micro, **case):
                        got = check(PRUN, "plans/fsdp.lua", ranks, batch=2 * ranks, replicate=groups, micro=micro,
                                    reshard_after_forward="group", **case)[0]
                        sizes, group = shards(case, ranks), ranks // groups
                        state, largest = F32 * sum(sizes), F32 * max(sizes)
                        kept, slots = groups * state, 2 * ranks * largest
                        scattered = (groups + (micro > 1)) * largest
                        self.roles(got, param=state, grad=state, optimizer=2 * state, gathered=kept + slots, reduce=slots + scattered)
                        # Between groups each unit is gathered once; within them as in zero3.
                        self.assertEqual(got["wire_bytes_per_step"]["replicate"],
                                         round((groups - 1) * state * (1 + micro) + all_reduce(LOSS_AND_NORM, groups)))
                        if micro == 1:
                            within = (group - 1) * groups * F32 * (2 * sum(sizes) + sum(sizes[1:-2]))
                            self.assertEqual(got["wire_bytes_per_step"]["shard"], round(within + all_reduce(LOSS_AND_NORM, group)))

    def test_small_parameters_stay_whole(self):
        for case, ranks in EACH:
            with self.subTest(ranks=ranks, **case):
                got = check(PRUN, "plans/custom/small_whole.lua", ranks, batch=2 * ranks, below="2 KiB", **case)[0]
                sizes = shards(case, ranks, lambda size: size >= 2048)
                small, shard = whole(case, lambda size: size < 2048), sum(sizes)
                slots = 2 * F32 * max(sizes) * ranks if ranks > 1 else 0
                self.roles(got, param=F32 * (shard + small), grad=F32 * (shard + small), optimizer=2 * F32 * (shard + small),
                           gathered=slots, reduce=slots)
                gathers = shard + sum(sizes[1:-2])  # backward still has the head and the last block and does not read the embedding
                wire = (ranks - 1) * F32 * (gathers + shard) + all_reduce(small, ranks) + all_reduce(LOSS_AND_NORM, ranks)
                self.assertEqual(got["wire_bytes_per_step"]["dp"], round(wire))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
