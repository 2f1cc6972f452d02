#!/usr/bin/env python3
"""Mixtures of experts: with each option of the router, the losses on a mesh equal one rank's to 1e-12 in f64; so do those
of plans/architectures/deepseek.lua under ep x tp x pp x zero. Usage: experts_test.py PRUN
"""
import array
import math
import pathlib
import random
import re
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import ROOT, command, programs, run, sent, steps  # noqa: E402

PLAN, DEEPSEEK = "tests/parity/experts.lua", "plans/architectures/deepseek.lua"
MESHES = [dict(ep=2), dict(ep=2, dp=2, zero=3), dict(tp=2), dict(ep=2, tp=2), dict(pp=2, ep=2, tp=2, micro=2),
          dict(ep=2, tp=2, sequence=True, dp=2, zero=1), dict(cp=2, dp=2), dict(cp=2, tp=2, folded=True),
          dict(cp=2, ep=2, folded=True, zero=1, dp=2), dict(ep=4, again=True, micro=2)]
V3 = dict(scores="sigmoid", scale=2.5, groups=4, kept=2, choices=3, shared=10, aux=0.02)
OPTIONS = {
    "not divided": dict(renormalise=False, scale=1.5),
    "sigmoids, groups and a shared expert": V3,
    "losses of the router": dict(scores="sigmoid", renormalise=False, aux=0.1, z=0.05),
    "a bias that follows loads": dict(V3, aux=0, bias_rate=0.1),
    "a bias and a loss of all layers": dict(bias_rate=0.1, balance=0.3),
    "losses of a softmax": dict(aux=0.1, z=0.05, gated=False),
}


def ranks(settings):
    return math.prod(settings.get(axis, 1) for axis in ("pp", "dp", "cp", "ep", "tp"))


class Experts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        dice = random.Random(3)
        lengths = [dice.randrange(1, 12) for _ in range(120)]  # documents of one token among them
        ids = [one for n in lengths for one in [dice.randrange(6, 64) for _ in range(n - 1)] + [5]]
        for name in ("documents.bin", "tokens.bin"):
            (self.folder / name).write_bytes(array.array("H", ids).tobytes())
        (self.folder / "plan.lua").write_text((ROOT / PLAN).read_text())

    def rows(self, plan=None, **settings):
        rows = steps(PRUN, plan or self.folder / "plan.lua", ranks(settings), "--device", "reference", **settings)
        return [{name: row[name] for name in ("loss", "balance", "grad_norm") if name in row} for row in rows]

    def equal(self, found, one, where):
        self.assertEqual(len(found), len(one))
        for step, (row, right) in enumerate(zip(found, one)):
            self.assertEqual(sorted(row), sorted(right))
            for name, value in right.items():
                self.assertAlmostEqual(row[name], value, delta=1e-12 * max(1, abs(value)),
                                       msg=f"{name}, step {step}, {where}")

    def every_mesh(self, meshes=MESHES, plan=None, **settings):
        alone = {}
        for mesh in meshes:
            with self.subTest(mesh=mesh):
                micro = mesh.get("micro", 1)  # each microbatch has losses of the router
                if micro not in alone:
                    alone[micro] = self.rows(plan, micro=micro, **settings)
                self.equal(self.rows(plan, **settings, **mesh), alone[micro], mesh)
        return alone[1]

    def test_each_option_on_each_mesh(self):
        seen = []
        for name, options in OPTIONS.items():
            with self.subTest(name):
                seen.append(self.every_mesh(**options)[-1]["loss"])
        self.assertEqual(len(set(seen)), len(OPTIONS))

    def test_the_bias_moves_once_a_step(self):
        options = dict(V3, aux=0, steps=4)
        once, still = (self.rows(**options, bias_rate=rate) for rate in (0.1, 1e-9))
        self.assertEqual(once[0], still[0])
        self.assertNotEqual(once[1], still[1])
        for micro in (2, 4):
            self.equal(self.rows(**options, bias_rate=0.1, micro=micro), once, f"{micro} microbatches")

    def test_padding_counts_in_no_loss(self):
        """Documents packed in streams; a stream more than they need would change the losses if its padding counted."""
        meshes = [dict(ep=2), dict(dp=2, tp=2, zero=3), dict(ep=2, tp=2), dict(pp=2, ep=2, micro=2)]
        options = dict(documents=True, aux=0.2, z=0.1, steps=2)
        self.every_mesh(meshes, **options)
        one = self.every_mesh(meshes, **dict(options, aux=0, z=0, balance=0.3))
        self.assertAlmostEqual(one[0]["balance"], 0.3 * 2, delta=0.05)  # the choices, if loads are even

    def test_rounds_drop_nothing(self):
        """Losses of a dropless mixture on every mesh equal those of one rank whose experts have slots for all tokens."""
        rounds = dict(dropless=True, capacity=0.5)
        for options, meshes in ((dict(aux=0.1, z=0.05, gated=False), MESHES), (V3, MESHES[1:6]),
                                (dict(V3, aux=0, bias_rate=0.1), MESHES[1:6]),
                                (dict(documents=True, balance=0.3), [dict(ep=2), dict(pp=2, ep=2, micro=2)])):
            for mesh in [dict(), *meshes]:
                with self.subTest(mesh=mesh, options=options):
                    whole = self.rows(**options, **{"micro": mesh["micro"]} if "micro" in mesh else {})
                    self.equal(self.rows(**options, **rounds, **mesh), whole, mesh)
        for options in (dict(l2=True), dict(twice=True), dict(l2=True, twice=True, micro=2)):  # add to the rounds' gradients
            with self.subTest(options=options):
                self.equal(self.rows(**options, **rounds), self.rows(**options), options)
        self.equal(self.rows(twice=True, ep=2, tp=2, **rounds), self.rows(twice=True), "weights of two calls on a mesh")
        for mesh, most in ((dict(ep=2, micro=2), 8), (dict(cp=4), 4.5)):  # a rank of cp has a fourth of the slots
            counted = steps(PRUN, self.folder / "plan.lua", ranks(mesh), "--device", "reference", **mesh, **rounds)
            self.assertTrue(all(2 <= step["expert_rounds"] <= most for step in counted), mesh)
        uneven = dict(dropless=True, capacity=0.3)  # a rank of cp has slots for its tokens in fewer rounds
        self.equal(self.rows(cp=4, **uneven), self.rows(**uneven), "needless rounds")
        once = steps(PRUN, self.folder / "plan.lua", 1, "--device", "reference", dropless=True, capacity=3.9)
        self.assertEqual([step["expert_rounds"] for step in once], [1, 1, 1])

    def test_slots_that_are_sent_whole_are_written(self):
        """GEMMs in bf16 multiply all slots of a round, also those of a rank that has no token in it."""
        rounds = dict(dropless=True, capacity=0.5, ep=2)
        for ranks_of, wanted in ((dict(), 0), (dict(cp=2, folded=True), 1)):
            settings = dict(rounds, **ranks_of)
            text = command(PRUN, "dump", self.folder / "plan.lua", ranks(settings), settings)
            writers = [line for line in text.splitlines() if re.match(r" *\d+  (dispatch|combine_grad) ", line)]
            self.assertGreater(len(writers), 8)
            for line in writers:
                self.assertEqual("whole=1" in line, wanted == 1, line)

    def test_no_op_of_a_round_touches_all_slots(self):
        """Gradients of gate and up are added by an op that reads the numbers of tokens."""
        settings = dict(dropless=True, capacity=0.5, ep=2)
        text = command(PRUN, "dump", self.folder / "plan.lua", ranks(settings), settings)
        rounds = {line.split()[1] for line in text.splitlines() if re.match(r" *\d+  ", line) and "round=" in line}
        self.assertEqual(rounds, {"dispatch", "combine", "dispatch_grad", "combine_grad", "pack_rows", "unpack_rows",
                                  "exchange_rows", "expert_linear", "expert_linear_dx", "expert_linear_dw",
                                  "expert_linear_dw_add", "expert_activation", "expert_activation_grad"})

    def test_proofs(self):
        for mesh in (dict(ep=2, tp=2), dict(pp=2, ep=2, tp=2, zero=1, micro=2), dict(dp=2, ep=2, tp=2, zero=3)):
            with self.subTest(mesh=mesh):
                done = run(PRUN, "check", self.folder / "plan.lua", "--nproc", ranks(mesh), "--device", "reference",
                           **V3, **mesh, dropless="pp" in mesh or "ep" in mesh and "dp" not in mesh, capacity=1.25)
                self.assertRegex(done.stdout + done.stderr, r"(?m)^proven\b.*: equals one rank to")

    def test_deepseek(self):
        self.assertLessEqual(len((ROOT / DEEPSEEK).read_text().splitlines()), 60)
        meshes = [dict(ep=2, tp=2, pp=2, dp=2, micro=2), dict(ep=4, tp=2), dict(dp=2, ep=2, pp=2, micro=2)]
        self.every_mesh(meshes, DEEPSEEK, dtype="f64", steps=3)
        whole = self.rows(DEEPSEEK, dtype="f64", steps=3)
        for mesh in (dict(), dict(ep=2, tp=2, dp=2)):  # in rounds
            self.equal(self.rows(DEEPSEEK, dtype="f64", steps=3, capacity=0.8, **mesh), whole, mesh)

    def test_gate_and_up_share_an_exchange(self):
        for gated in (False, True):
            step = programs(PRUN, self.folder / "plan.lua", 2, ep=2, gated=gated, dtype="f32")[0]
            moved = [op for op in step["ep"] if op.kind == "all_to_all" and op.elements > 8]  # not the counts
            self.assertEqual(len(moved), 2 * 4)  # layers; there and back, forward and backward
            self.assertEqual(sent(moved, 2), 2 * 4 * 8 * 64 * 16 * 4 / 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
