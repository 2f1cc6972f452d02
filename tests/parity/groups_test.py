#!/usr/bin/env python3
"""Parameter groups and frozen parameters of a run on CPUs: groups with the optimizer's own settings change no bit,
memory and traffic of frozen parameters are those of their weights, and checkpoints resume. Usage: groups_test.py PRUN
"""
import json
import pathlib
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

PLAN = "tests/parity/groups.lua"
FROZEN = "embed*|block0.*|*.up.*"
LINE = 32  # elements of a cache line
WIDTH, VOCAB, CONTEXT = 48, 256, 16
D = WIDTH
BLOCK = {"ln1.weight": D, "ln1.bias": D, "qkv.weight": 3 * D * D, "qkv.bias": 3 * D, "proj.weight": D * D,
         "proj.bias": D, "ln2.weight": D, "ln2.bias": D, "up.weight": 4 * D * D, "up.bias": 4 * D,
         "down.weight": 4 * D * D, "down.bias": D}
UNITS = [{"embed.token": VOCAB * D, "embed.position": CONTEXT * D}, BLOCK, BLOCK,
         {"ln.weight": D, "ln.bias": D, "logits": VOCAB * D}]


def up(value, step=LINE):
    return -(-value // step) * step


def is_frozen(unit, name):
    return unit < 2 or name.startswith("up.")


def elements(frozen):
    return sum(up(size) for u, unit in enumerate(UNITS) for name, size in unit.items() if is_frozen(u, name) == frozen)


def shards(frozen, ranks):
    """Returns a rank's elements of each unit's trained or frozen part."""
    parts = [[up(size) for name, size in unit.items() if is_frozen(u, name) == frozen] for u, unit in enumerate(UNITS)]
    return [up(-(-sum(part) // ranks)) for part in parts if part]


def run(*words, **settings):
    return program_text.run(PRUN, *words, check=True, **settings)


class Groups(unittest.TestCase):
    def losses(self, ranks=1, *options, **settings):
        return program_text.losses(PRUN, PLAN, ranks, *options, **settings)

    def test_groups_with_the_optimizers_settings_change_no_bit(self):
        cases = ("single", 1, "f32"), ("single", 1, "bf16"), ("ddp", 2, "bf16"), ("zero3", 3, "f32")
        for strategy, ranks, dtype in cases:
            with self.subTest(strategy=strategy, dtype=dtype):
                each = [dict(groups=groups, strategy=strategy, dtype=dtype) for groups in ("none", "equal")]
                dumps = [program_text.command(PRUN, "dump", PLAN, ranks, settings) for settings in each]
                none, equal = ([line.split("  [")[0] for line in dump.splitlines() if "adamw" in line]
                               for dump in dumps)
                self.assertEqual(none, equal)
                none, equal = (self.losses(ranks, **settings) for settings in each)
                self.assertEqual(none, equal)

    def test_groups_of_their_own_are_the_same_on_every_mesh(self):
        for dtype, bound in (("f32", 1e-5), ("bf16", 4e-3)):
            one, none = self.losses(groups="own", dtype=dtype), self.losses(dtype=dtype)
            self.assertGreater(abs(one[-1] - none[-1]), 2 * bound * none[-1])
            for strategy, ranks in (("ddp", 2), ("zero1", 2), ("zero2", 3), ("zero3", 2), ("zero3", 3)):
                with self.subTest(strategy=strategy, ranks=ranks, dtype=dtype):
                    mine = self.losses(ranks, groups="own", strategy=strategy, dtype=dtype)
                    for loss, theirs in zip(mine, one, strict=True):
                        self.assertLess(abs(loss - theirs), bound * theirs)

    def test_check_lists_what_is_in_each_group(self):
        settings = dict(groups="own", frozen="block0.*")
        lists = json.loads(program_text.command(PRUN, "check", PLAN, 1, settings))["groups"]
        names = [group["names"] for group in lists]
        self.assertEqual([group["group"] for group in lists],
                         ["group 1, *.bias|*.ln*", "group 2, *.up.weight", "group 3, 1 dim", "group 4, embed*",
                          "no group", "frozen"])
        self.assertEqual(names[1:4], [["block1.up.weight"], [], ["embed.token.weight", "embed.position.weight"]])
        self.assertEqual([(group["lr_factor"], group["weight_decay"]) for group in lists[:5]],
                         [(1, 0), (0.1, 2), (1, 0.1), (20, 0.1), (1, 0.1)])
        self.assertEqual(len(names[5]), len(BLOCK))
        self.assertEqual(sum(map(len, names)), sum(map(len, UNITS)))
        lines = run("check", PLAN, "--nproc", 1, **settings).stdout.splitlines()
        self.assertIn("group 2, *.up.weight (lr × 0.1, decay 2): 9,216 parameters in 1 tensor: block1.up.weight",
                      lines)
        self.assertIn("group 3, 1 dim (decay 0.1): none: earlier groups or `frozen` take all that it matches", lines)
        lines = run("check", PLAN, "--nproc", 1, frozen="*.qkv.*").stdout.splitlines()
        self.assertIn("frozen: 14,112 parameters in 4 tensors: block*.qkv.weight, block*.qkv.bias", lines)

    def test_memory_and_traffic_of_frozen_parameters(self):
        for strategy, ranks, wide in (("single", 1, 4), ("ddp", 2, 4), ("zero3", 2, 4), ("zero2", 2, 4), ("zero3", 2, 2)):
            with self.subTest(strategy=strategy, wide=wide):
                dtype = "f32" if wide == 4 else "bf16"
                got = program_text.check(PRUN, PLAN, ranks, strategy=strategy, frozen=FROZEN, dtype=dtype)[0]
                sharded = strategy.startswith("zero")
                trained, frozen = (sum(shards(part, ranks)) if sharded else elements(part) for part in (False, True))
                if strategy == "zero2":  # every rank would keep them gathered, so they are stored whole
                    frozen = elements(True)
                self.assertEqual([got["roles"][role] for role in ("param", "grad", "optimizer", "frozen")],
                                 [4 * trained, 4 * trained, 8 * trained, wide * frozen])
                sent = (got["wire_bytes_per_step"] or {}).get("dp", 0)
                all_reduce = 2 * (ranks - 1) / ranks * 4
                if strategy == "ddp":
                    self.assertEqual(sent, round(all_reduce * (trained + 1)))  # and the loss
                if strategy == "zero2":
                    self.assertEqual(sent, round((ranks - 1) * 8 * trained + 3 * all_reduce))  # and the norm

    def test_a_checkpoint_holds_frozen_weights_once_and_resumes(self):
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype=dtype):
                self.check_resumed(dtype)

    def check_resumed(self, dtype):
        with tempfile.TemporaryDirectory() as folder:
            whole, half = pathlib.Path(folder, "whole"), pathlib.Path(folder, "half")
            settings = dict(groups="own", frozen=FROZEN, strategy="zero3", dtype=dtype)
            losses = self.losses(2, "--checkpoint", whole, steps=6, **settings)
            first = self.losses(2, "--checkpoint", half, steps=3, **settings)
            rest = self.losses(3, "--checkpoint", half, "--resume", "auto", steps=6, **settings)
            for mine, theirs in zip(first + rest, losses, strict=True):
                self.assertLess(abs(mine - theirs), (1e-5 if dtype == "f32" else 4e-3) * theirs)
            index = json.loads((whole / "step_00000006/index.json").read_text())["tensors"]
            tensors = index if isinstance(index, dict) else {tensor["name"]: tensor for tensor in index}
            state = [name for name in tensors if name.startswith("optimizer.")]
            self.assertFalse([name for name in state if ".block0." in name or ".up." in name])
            self.assertEqual(tensors["block0.qkv.weight"]["dtype"], "F32" if dtype == "f32" else "BF16")
            pieces = tensors["block0.qkv.weight"]["pieces"]
            self.assertEqual(sum(program_text.math.prod(piece["shape"]) for piece in pieces), BLOCK["qkv.weight"])

    def test_frozen_weights_stay_as_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            base, tuned = pathlib.Path(folder, "base"), pathlib.Path(folder, "tuned")
            self.losses(1, "--checkpoint", base, steps=2)
            options = {"steps": 3, "strategy": "zero3", "frozen": FROZEN, "from": base}
            done = run(PLAN, "--nproc", 2, "--checkpoint", tuned, **options)
            self.assertNotIn("not in", done.stderr)
            changed = program_text.run(PRUN, "ckpt", "diff", base, tuned).stdout
            for name in ("embed.token.weight", "block0.qkv.weight", "block1.up.weight"):
                self.assertNotRegex(changed, rf"(?m)^ *{name}.*differ")
            self.assertIn("block1.down.weight", changed)

    def test_weights_of_a_smaller_model_leave_the_others_at_initial_values(self):
        with tempfile.TemporaryDirectory() as folder:
            base, longer = pathlib.Path(folder, "base"), pathlib.Path(folder, "longer")
            self.losses(1, "--checkpoint", base, steps=2, layers=1)
            words, tuned = (PLAN, "--metrics", "-", "-q", "--nproc"), {"steps": 1, "from": base}
            two, one = run(*words, 2, strategy="zero3", **tuned), run(*words, 1, **tuned)
            self.assertIn("12 of 29 parameters are not in", two.stderr)
            self.assertIn("block1.proj.weight and 4 more", two.stderr)
            first = [json.loads(done.stdout.splitlines()[0])["loss"] for done in (two, one)]
            self.assertLess(abs(first[0] - first[1]), 1e-5)
            self.assertGreater(abs(first[0] - self.losses(1, steps=1)[0]), 1e-3)
            run(PLAN, "--nproc", 1, "--checkpoint", longer, **tuned)
            done = run(PLAN, "--nproc", 1, "--checkpoint", longer, "--resume", "auto", **{**tuned, "steps": 2})
            self.assertNotIn("are not in", done.stderr)
            done = program_text.run(PRUN, PLAN, "--nproc", 1, width=32, **tuned)
            self.assertEqual(done.returncode, 16)
            self.assertIn("width is 48 there and 32 here", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
