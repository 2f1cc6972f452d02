#!/usr/bin/env python3
"""Optimizers of a plan's own, and Muon. AdamW in Lua (plans/custom/adamw.lua) equals prun.adamw: bit for bit in f64,
within rounding in f32 and bf16; it resumes on another mesh and has the same memory. Muon trains alike on every mesh;
each matrix has one owner, and owners have even work. Adafactor trains alike on every mesh, in the memory of rows and
columns. Usage: optimizers_test.py PRUN
"""
import collections
import json
import pathlib
import re
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

OWN = "plans/custom/adamw.lua"
SMALL = dict(layers=2, width=32, heads=2, context=16, batch=12, lr=3e-3, steps=6)


def losses(ranks, *options, **settings):
    return program_text.losses(PRUN, OWN, ranks, *options, **{**SMALL, **settings})


class Own(unittest.TestCase):
    def test_adamw_in_lua_is_adamw(self):
        for ranks, dtype, bound in ((1, "f64", 0), (3, "f64", 0), (2, "f32", 1e-5), (2, "bf16", 4e-3)):
            with self.subTest(ranks=ranks, dtype=dtype):
                device = ("--device", "reference") if dtype == "f64" else ()
                mine, theirs = (losses(ranks, *device, own=own, dtype=dtype) for own in (True, False))
                self.assertGreater(theirs[0] - theirs[-1], 0.1)
                for a, b in zip(mine, theirs, strict=True):
                    self.assertLessEqual(abs(a - b), bound * b)

    def test_its_memory_is_that_of_adamw(self):
        for ranks in 1, 3:
            mine, theirs = (program_text.check(PRUN, OWN, ranks, own=own, **SMALL)[0]["roles"] for own in (True, False))
            self.assertEqual({**mine, "workspace": 0}, {**theirs, "workspace": 0})

    def test_it_resumes_on_another_mesh(self):
        with tempfile.TemporaryDirectory() as folder:
            half = pathlib.Path(folder, "half")
            whole = losses(2)
            first = losses(2, "--checkpoint", half, steps=3)
            rest = losses(3, "--checkpoint", half, "--resume", "auto")
            for mine, theirs in zip(first + rest, whole, strict=True):
                self.assertLess(abs(mine - theirs), 1e-5 * theirs)
            names = json.loads((half / "step_00000003/index.json").read_text())["tensors"]
            self.assertIn("optimizer.my_adamw.v.block0.qkv.weight", names)


PLAN = "tests/parity/groups.lua"
D = 48  # width; a block has matrices of 3, 1, 4 and 4 times D * D elements, whose smaller side is D


class OnMeshes:
    """Training with the groups of tests/parity/groups.lua that are named `groups`."""

    def losses(self, ranks=1, *options, **settings):
        return program_text.losses(PRUN, PLAN, ranks, *options, groups=self.groups, **settings)

    def assert_same_on_every_mesh(self, one, dtype, bound):
        for strategy, ranks in (("ddp", 2), ("zero1", 2), ("zero2", 3), ("zero3", 3)):
            with self.subTest(strategy=strategy, ranks=ranks, dtype=dtype):
                for mine, theirs in zip(self.losses(ranks, strategy=strategy, dtype=dtype), one, strict=True):
                    self.assertLess(abs(mine - theirs), bound * theirs)

    def resumed(self):
        """Resumes on another mesh, compares the losses, and returns the tensors of the checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            half = pathlib.Path(folder, "half")
            whole = self.losses(2, strategy="zero3", steps=6)
            first = self.losses(2, "--checkpoint", half, strategy="zero3", steps=3)
            rest = self.losses(3, "--checkpoint", half, "--resume", "auto", strategy="ddp", steps=6)
            for mine, theirs in zip(first + rest, whole, strict=True):
                self.assertLess(abs(mine - theirs), 1e-4 * theirs)
            return json.loads((half / "step_00000003/index.json").read_text())["tensors"]


class Muon(OnMeshes, unittest.TestCase):
    groups = "muon"

    def test_it_is_the_same_on_every_mesh(self):
        for dtype, bound in (("f32", 1e-4), ("bf16", 1e-3)):
            one, adamw = self.losses(dtype=dtype), program_text.losses(PRUN, PLAN, 1, dtype=dtype)
            self.assertLess(one[-1], one[0] - 0.1)
            self.assertGreater(abs(one[-1] - adamw[-1]), 2 * bound * one[-1])
            self.assert_same_on_every_mesh(one, dtype, bound)

    def test_each_matrix_has_one_owner_and_owners_have_even_work(self):
        for strategy, ranks, layers in (("single", 1, 4), ("ddp", 2, 4), ("zero3", 4, 8), ("zero1", 3, 6)):
            with self.subTest(strategy=strategy, ranks=ranks):
                dump = program_text.command(PRUN, "dump", PLAN, ranks, dict(groups="muon", strategy=strategy, layers=layers))
                work, matrices = collections.Counter(), 0
                for line in re.findall(r"^ +\d+  orthogonalize .*$", dump, flags=re.M):
                    lists = {name: [int(n) for n in re.split(r"[ ,]+", text) if n]
                             for name, text in re.findall(r"(owners|rows|columns)=\[?([\d, ]+)\]?", line)}
                    for owner, rows, columns in zip(*(lists[name] for name in ("owners", "rows", "columns")), strict=True):
                        m, n = min(rows, columns), max(rows, columns)
                        work[owner] += 4 * m * m * n + 2 * m ** 3
                        matrices += 1
                self.assertEqual(matrices, 4 * layers)
                self.assertEqual(set(work), set(range(ranks)))
                self.assertLess(max(work.values()), 1.1 * sum(work.values()) / ranks)

    def test_its_state_is_one_moment_for_matrices(self):
        got = [program_text.check(PRUN, PLAN, 1, groups=groups, layers=2)[0]["roles"]["optimizer"]
               for groups in ("none", "muon")]
        self.assertEqual(got[0] - got[1], 4 * 2 * 12 * D * D)

    def test_check_names_the_optimizer_of_each_group(self):
        text = program_text.run(PRUN, "check", PLAN, "--nproc", 1, check=True, groups="muon").stdout
        self.assertIn("group 1, embed*|head* (adamw, lr × 0.1, decay 0.01): ", text)
        self.assertIn("no group (muon, decay ", text)

    def test_it_resumes_on_another_mesh(self):
        names = self.resumed()
        self.assertIn("optimizer.muon.momentum.block0.qkv.weight", names)
        self.assertIn("optimizer.adamw.v.block0.qkv.bias", names)
        self.assertNotIn("optimizer.adamw.v.block0.qkv.weight", names)


class Adafactor(OnMeshes, unittest.TestCase):
    groups = "adafactor"

    def test_it_is_the_same_on_every_mesh(self):
        for dtype, bound in (("f32", 1e-4), ("bf16", 1e-3)):
            one = self.losses(dtype=dtype)
            self.assertLess(one[-1], one[0] - 0.05)
            self.assert_same_on_every_mesh(one, dtype, bound)

    def test_its_state_is_a_row_and_a_column_of_each_matrix(self):
        state = program_text.check(PRUN, PLAN, 1, groups="adafactor", layers=1)[0]["roles"]["optimizer"]
        matrices = [(256, D), (16, D), (D, 3 * D), (D, D), (D, 4 * D), (4 * D, D), (D, 256)]
        vectors = 2 * D + 2 * D + 3 * D + D + 4 * D + D + 2 * D
        due = 4 * (sum(rows + columns for rows, columns in matrices) + vectors)
        self.assertTrue(due <= state <= due + 3 * 64, (state, due))  # each unit's part fills cache lines

    def test_it_resumes_on_another_mesh(self):
        tensors = self.resumed()
        for kind, name, shape in (("row_var", "qkv.weight", [D]), ("col_var", "qkv.weight", [3 * D]), ("variance", "qkv.bias", [3 * D])):
            self.assertEqual(tensors[f"optimizer.adafactor.{kind}.block0.{name}"]["shape"], shape)

    def test_replicas_of_its_state_are_compared(self):
        self.losses(2, "--check-replicas", "1", strategy="ddp")
        dump = program_text.run(PRUN, "dump", PLAN, "--nproc", 2, "--check-replicas", "1", check=True, groups="adafactor",
                                strategy="zero1").stdout
        self.assertIn("row_var.block0.qkv.weight", dump)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
