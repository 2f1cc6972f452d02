#!/usr/bin/env python3
"""Ignored targets, weights and label smoothing: the mean is over what counts in the whole batch, on every mesh, as the
samples alone give it. Usage: masks_test.py PRUN
"""
import array
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from mesh_case import MeshCase  # noqa: E402

SAMPLES, CONTEXT, VOCAB, IGNORED = 48, 8, 24, -100
MESHES = [{}, {"micro": 4}, {"dp": 2, "micro": 2}, {"dp": 4, "zero": 3}, {"tp": 2}, {"pp": 2, "micro": 4},
          {"dp": 2, "zero": 1, "tp": 2, "micro": 2}, {"pp": 2, "dp": 2, "zero": 3, "micro": 2, "schedule": "zb_h1"}]


class Masks(MeshCase):
    PLAN = pathlib.Path(__file__).resolve().with_name("masks.lua")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        draw = random.Random(4)
        cls.tokens = [draw.randrange(VOCAB) for _ in range(801)]
        (cls.folder / "tokens.bin").write_bytes(array.array("H", cls.tokens).tobytes())
        # Between 1 and 8 targets of a sample count, of each eighth sample none.
        cls.kept = [draw.randrange(1, CONTEXT + 1) if i % 8 else 0 for i in range(SAMPLES)]
        cls.y = [draw.randrange(VOCAB) if t < cls.kept[i] else IGNORED for i in range(SAMPLES) for t in range(CONTEXT)]
        cls.write("x", [SAMPLES, CONTEXT], [draw.randrange(VOCAB) for _ in cls.y])
        cls.write("y", [SAMPLES, CONTEXT], cls.y, "<i8")
        cls.weights = [draw.randrange(0, 8) / 4 for _ in range(SAMPLES)]
        cls.labels = [draw.randrange(VOCAB) if i % 3 else IGNORED for i in range(SAMPLES)]
        cls.write("w", [SAMPLES, 1], cls.weights, "<f4")
        cls.write("labels", [SAMPLES], cls.labels)

    def test_every_mesh_counts_the_whole_batch(self):
        self.same_on(MESHES, smoothing=0.1)
        self.same_on([{"pp": 2, "micro": 4}, {"dp": 2, "zero": 3}], tied=True)

    def test_tokens_after_documents_and_of_one_id(self):
        cp = [{"cp": 2}, {"cp": 2, "dp": 2, "micro": 2}, {"cp": 2, "tp": 2}, {"pp": 2, "micro": 2}]
        ends = self.same_on(cp, data="tokens", ends=3)
        ignored = self.same_on(cp, data="tokens", ignore=3, order="random")
        self.assertNotEqual(ends, ignored)

    def test_parts_of_a_batch_add_up(self):
        """The sum over all targets is that over one half and that over the other; Python counts both."""
        half = [i % 5 < 2 for i in range(len(self.y))]
        for smoothing in (0.0, 0.1):
            sums = []
            for name, part in (("all", lambda i: True), ("a", lambda i: half[i]), ("b", lambda i: not half[i])):
                y = [label if part(i) else IGNORED for i, label in enumerate(self.y)]
                self.write(name, [SAMPLES, CONTEXT], y, "<i8")
                loss = self.losses(y=f"{name}.npy", batch=SAMPLES, steps=1, smoothing=smoothing)[0]
                sums.append(loss * sum(label != IGNORED for label in y))
            self.assertAlmostEqual(sums[0], sums[1] + sums[2], delta=1e-11 * sums[0])

    def test_weights(self):
        sums = []
        for name, part in (("all", lambda i: True), ("a", lambda i: i % 5 < 2), ("b", lambda i: i % 5 >= 2)):
            y = [label if part(i) else IGNORED for i, label in enumerate(self.labels)]
            self.write(name, [SAMPLES], y)
            loss = self.losses(data="rows", weighted=True, y=f"{name}.npy", batch=SAMPLES, steps=1)[0]
            sums.append(loss * sum(weight for label, weight in zip(y, self.weights) if label != IGNORED))
        self.assertAlmostEqual(sums[0], sums[1] + sums[2], delta=1e-11 * sums[0])
        weighted = self.same_on([{"dp": 2, "micro": 2}, {"dp": 4, "zero": 3}, {"tp": 2, "pp": 2, "micro": 2}],
                                data="rows", weighted=True)
        self.assertNotEqual(weighted, self.losses(data="rows"))

    def test_evaluations_are_means_over_all_of_their_batches(self):
        half = {"steps": 1, "lr": 0, "key": "eval_loss"}
        one = self.losses(batch=24, eval=1, **half)
        for batch, batches in ((8, 3), (12, 2), (8, "all"), (16, "all"), (10, "all"), (7, "all")):
            with self.subTest(batch=batch, batches=batches):
                self.close(self.losses(batch=batch, eval=batches, **half), one, 1e-12)
        for mesh in ({"dp": 2, "zero": 3}, {"pp": 2, "micro": 2}, {"tp": 2, "micro": 2}):
            with self.subTest(mesh=mesh):
                self.close(self.losses(batch=16, eval="all", **half, **mesh), one, 1e-12)

    def test_what_cannot_be_averaged_is_an_error(self):
        self.write("none", [SAMPLES], [IGNORED] * SAMPLES)
        done = self.prun(self.PLAN, *self.EXACT, code=3, data="rows", y="none.npy")
        self.assertIn("none.npy: every label is -100, which the loss ignores", done.stderr)
        self.write("few", [SAMPLES], [1] + [IGNORED] * (SAMPLES - 1))
        for ranks in (1, 2):
            done = self.prun(self.PLAN, "--nproc", ranks, *self.EXACT, code=2, data="rows", y="few.npy", dp=ranks, batch=4)
            self.assertRegex(done.stderr, "few.npy: none of the 4 targets of step [12] counts in the loss, because all "
                                          "are ignored")
        labels = list(self.labels)
        labels[7] = VOCAB
        self.write("high", [SAMPLES], labels)
        done = self.prun(self.PLAN, *self.EXACT, code=3, data="rows", y="high.npy")
        self.assertIn(f"high.npy has the id {VOCAB} at position 0 of sample 7 (byte", done.stderr)
        labels[7] = -1
        self.write("low", [SAMPLES], labels)
        done = self.prun(self.PLAN, *self.EXACT, code=3, data="rows", y="low.npy")
        self.assertIn("ids count from 0, and the loss ignores only -100 (ignore)", done.stderr)
        self.write("low", [SAMPLES], [-1 if label == IGNORED else label for label in self.labels])
        settings = {"data": "rows", "batch": SAMPLES, "steps": 1}
        self.assertEqual(self.losses(y="low.npy", ignore=-1, **settings), self.losses(**settings))

    def test_float32_on_the_cpu(self):
        exact = self.losses(smoothing=0.1)
        for options in ((), ("--device", "cpu-queue")):
            self.close(self.losses(*(options or ("--device", "cpu")), smoothing=0.1, dtype="f32"), exact, 1e-6)
        self.close(self.losses("--device", "cpu", smoothing=0.1, dtype="f32", tp=2, micro=2), exact, 1e-6)

    def test_proofs_have_masks(self):
        for settings in ({"dp": 2, "zero": 3, "micro": 2}, {"pp": 2, "tp": 2, "micro": 2, "smoothing": 0.1},
                         {"data": "tokens", "ends": 3, "cp": 2}, {"data": "rows", "weighted": True, "dp": 4}):
            self.proven(**settings)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
