#!/usr/bin/env python3
"""nn.attention of separate q, k and v: each form (attend.lua) has the losses of one rank on every mesh, those of the same
attention made of matmul and softmax, and without further rules those of the op for a fused qkv.

Usage: attend_test.py PRUN
"""
import itertools
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from mesh_case import MeshCase  # noqa: E402

SAMPLES, CONTEXT, VOCAB = 12, 12, 64
FORMS = ("plain", "all", "window", "far", "softcap", "mask", "padding", "cross", "value", "norms")


class Attend(MeshCase):
    PLAN = pathlib.Path(__file__).resolve().with_name("attend.lua")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        draw = random.Random(5)
        lengths = [draw.randrange(1, CONTEXT + 1) for _ in range(SAMPLES)]

        def fill(name, shape, value):
            cls.write(name, shape, [value(*place) for place in itertools.product(*map(range, shape))])

        rows = [SAMPLES, CONTEXT]
        fill("tokens", rows, lambda i, t: draw.randrange(VOCAB))
        fill("source", [SAMPLES, 7], lambda i, t: draw.randrange(VOCAB))
        fill("labels", rows, lambda i, t: draw.randrange(VOCAB) if t < lengths[i] else -100)
        fill("padding", rows, lambda i, t: int(t < lengths[i]))
        fill("mask", [*rows, CONTEXT], lambda i, t, s: int(t == s or draw.random() < 0.6))

    def test_each_form_on_a_mesh(self):
        for i, form in enumerate(FORMS):
            self.same_on([{"dp": 2, "zero": 3, "micro": 2} if i % 2 else {"dp": 2, "zero": 1}, {"tp": 2}], form=form)
        self.same_on([{"pp": 2, "micro": 2}, {"tp": 2, "dp": 2, "zero": 3, "pp": 2}], form="mask")

    def test_keys_with_fewer_heads_than_ranks(self):
        for kv in (1, 2):
            self.same_on([{"tp": 2}, {"tp": 4}, {"tp": 4, "dp": 2, "zero": 3}], form="plain", kv=kv)
        self.same_on([{"tp": 4}], form="value", kv=2)

    def test_made_of_matmul_and_softmax(self):
        for form in ("plain", "all", "window", "far", "softcap", "cross", "value"):
            with self.subTest(form=form):
                self.close(self.losses(form=form, scores=True, kv=2), self.losses(form=form, kv=2), 1e-12)
        self.same_on([{"dp": 2, "micro": 2}, {"tp": 2}], form="bias")
        self.same_on([{"dp": 2}, {"dp": 2, "zero": 3}], form="dropout")

    def test_equals_a_fused_qkv(self):
        self.close(self.losses(form="plain", kv=2), self.losses(form="fused", kv=2), 1e-12)

    def test_a_fused_qkv_with_rules(self):
        """Each rank has its part of q, of k and of v: slices and concatenations keep them apart."""
        self.same_on([{"tp": 2}, {"dp": 2, "tp": 2, "zero": 3}], form="fused", kv=2)
        for kv in (2, 4):
            self.same_on([{"tp": 2}, {"dp": 2, "zero": 3, "pp": 2}], form="sliced", kv=kv)
        self.close(self.losses(form="sliced", kv=2), self.losses(form="joined", kv=2), 1e-12)

    def test_over_a_ring(self):
        self.same_on([{"cp": 2}, {"cp": 3, "dp": 2, "zero": 3}, {"cp": 2, "tp": 2}], form="plain", kv=2)
        self.same_on([{"cp": 2}], form="all")

    def test_rules_change_the_result(self):
        plain = self.losses(form="plain", steps=1)[0]
        for form in FORMS[1:]:
            if form not in ("value", "cross"):
                self.assertGreater(abs(self.losses(form=form, steps=1)[0] - plain), 1e-9, form)

    def test_float32_on_the_cpu(self):
        for form in ("window", "mask", "padding", "softcap", "bias"):
            with self.subTest(form=form):
                self.close(self.losses("--device", "cpu", form=form, dtype="f32", rule="sgd"),
                           self.losses(form=form, rule="sgd"), 1e-5)

    def test_the_proof(self):
        for form, mesh in (("mask", {"dp": 2, "tp": 2}), ("cross", {"pp": 2, "tp": 2}), ("plain", {"tp": 4, "kv": 2})):
            self.proven(form=form, **mesh)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
