#!/usr/bin/env python3
"""Forms of nn.rotary, positions from data, and norms of q and k: every mesh computes what one rank does. Positions that
count from 0 give the losses of those that prun counts. Usage: rotary_test.py PRUN
"""
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from mesh_case import MeshCase  # noqa: E402

SAMPLES, CONTEXT, VOCAB = 24, 16, 24
MESHES = [{"dp": 2, "micro": 2}, {"tp": 2}, {"cp": 2}, {"pp": 2, "micro": 2}, {"dp": 2, "zero": 3},
          {"cp": 2, "tp": 2}, {"pp": 2, "dp": 2, "zero": 2, "micro": 2}, {"tp": 2, "sequence": True, "recompute": True}]
FORMS = ["plain", "part", "neighbors", "part_of_neighbors", "yarn", "longrope"]


class Rotary(MeshCase):
    PLAN = pathlib.Path(__file__).resolve().with_name("rotary.lua")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = [SAMPLES, CONTEXT]
        draw = random.Random(4)
        for name in ("x", "y"):
            cls.write(name, rows, [draw.randrange(VOCAB) for _ in range(SAMPLES * CONTEXT)])
        cls.write("counted", rows, list(range(CONTEXT)) * SAMPLES)
        documents = []
        for _ in range(SAMPLES):
            first = draw.randrange(1, CONTEXT)
            documents += [*range(first), *range(CONTEXT - first)]
        cls.write("documents", rows, documents)

    def test_positions_from_data_on_every_mesh(self):
        documents = self.same_on(MESHES, positions="documents.npy")
        counted = self.losses()
        self.assertNotEqual(documents, counted)
        self.close(self.losses(positions="counted.npy"), counted, 1e-14)

    def test_forms_on_meshes(self):
        seen = set()
        for i, form in enumerate(FORMS[1:]):
            for positions in ("", "documents.npy"):
                losses = self.same_on([MESHES[(2 * i + k) % len(MESHES)] for k in (1, 2)], form=form, positions=positions)
                seen.add(tuple(losses))
        self.assertEqual(len(seen), 2 * len(FORMS[1:]))

    def test_norms_of_q_and_k(self):
        meshes = [mesh for mesh in MESHES if mesh.get("tp", 1) == 1]
        for norm in ("heads", "columns"):
            self.same_on(meshes, norm=norm, positions="documents.npy", form="part")

    def test_norms_without_a_shift_or_a_scale(self):
        losses = {ln: self.same_on([MESHES[i], MESHES[-1]], ln=ln)
                  for i, ln in enumerate(("plain_rms", "layernorm", "no_bias", "plain"))}
        self.assertEqual(len({values[-1] for values in losses.values()}), 4)

    def test_a_layer_without_blocks(self):
        with_blocks = self.losses()
        self.assertEqual(self.losses(blocks=False), with_blocks)
        for mesh in ({"tp": 2}, {"tp": 2, "cp": 2}, {"dp": 2, "zero": 3}):
            self.assertEqual(self.losses(blocks=False, **mesh), self.losses(**mesh))

    def test_float32_on_the_cpu(self):
        for form in FORMS:
            exact = self.losses(form=form, positions="documents.npy")
            for mesh in ({}, {"tp": 2}):
                ours = self.losses("--device", "cpu", form=form, positions="documents.npy", dtype="f32", **mesh)
                self.close(ours, exact, 1e-6)

    def test_proofs(self):
        for i, form in enumerate(FORMS):
            for settings in (MESHES[i], {"positions": "documents.npy", **MESHES[i + 1]}):
                self.proven(form=form, **settings)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
