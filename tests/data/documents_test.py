#!/usr/bin/env python3
"""Packed documents (pack = "documents"): any mix of documents on any mesh trains exactly as one rank that reads each
document alone, as a sample of its own. Usage: documents_test.py PRUN
"""
import array
import itertools
import json
import math
import pathlib
import random
import shutil
import struct
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from mesh_case import MeshCase  # noqa: E402

CLUSTER = HERE.parents[1] / "plans/clusters/dgx-a100.yaml"
CAPACITY, VOCAB, END, STREAMS, IGNORED = 32, 24, 5, 8, -100


def streams_of(lengths, capacity=CAPACITY):
    """Returns the number of streams that best-fit decreasing needs."""
    free = []
    for length in sorted(lengths, reverse=True):
        fits = [space for space in free if space >= length]
        if fits:
            free.remove(min(fits))
        free.append((min(fits) if fits else capacity) - length)
    return len(free)


def documents():
    """Returns documents of 1 to 32 tokens that fill 8 streams."""
    draw = random.Random(7)
    while True:
        lengths = []
        while streams_of(lengths) < STREAMS or sum(lengths) < 0.96 * STREAMS * CAPACITY:
            lengths.append(min(CAPACITY, 1 + int(draw.expovariate(0.12))))
        if streams_of(lengths) == STREAMS:
            ids = [token for token in range(VOCAB) if token != END]
            return [[draw.choice(ids) for _ in range(length - 1)] + [END] for length in lengths]


def weights_of(folder):
    """Returns name -> elements of the newest checkpoint of a folder."""
    newest = max(path for path in folder.iterdir() if path.name.startswith("step_"))
    index, found = json.loads((newest / "index.json").read_text()), {}
    for name, tensor in index["tensors"].items():
        shape = tensor["shape"]
        whole = found[name] = array.array("d", bytes(8 * math.prod(shape)))
        for piece in tensor["pieces"]:
            data = (newest / piece["file"]).read_bytes()
            length, = struct.unpack_from("<Q", data)
            begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
            values = array.array("d", data[8 + length + begin:8 + length + end])
            places = itertools.product(*(range(first, first + n) for first, n in zip(piece["offset"], piece["shape"])))
            for value, place in zip(values, places, strict=True):
                at = 0
                for index_in_dim, extent in zip(place, shape):
                    at = at * extent + index_in_dim
                whole[at] = value
    return found


class Documents(MeshCase):
    PLAN = HERE / "documents.lua"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.documents = documents()
        cls.write_tokens("documents.bin", cls.documents)
        cls.write_alone(cls.documents)

    @classmethod
    def write_tokens(cls, name, docs):
        (cls.folder / name).write_bytes(array.array("H", [token for doc in docs for token in doc]).tobytes())

    @classmethod
    def write_alone(cls, docs):
        """Writes each document as a sample of its own, padded to the capacity."""
        tokens, targets, positions, runs = [], [], [], []
        for doc in docs:
            padding = CAPACITY - len(doc)
            tokens += doc + [0] * padding
            targets += doc[1:] + [IGNORED] * (padding + 1)
            positions += list(range(len(doc))) + [0] * padding
            runs += [0, len(doc)] * len(doc)
            for token in range(len(doc), CAPACITY):
                runs += [token, token + 1]
        for name, values in (("tokens", tokens), ("targets", targets), ("positions", positions), ("runs", runs)):
            shape = [len(docs), CAPACITY] + [2] * (name == "runs")
            cls.write(name, shape, values)

    def trained(self, *options, **settings):
        """Returns the losses of the steps and the trained weights."""
        checkpoint = self.folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        losses = self.losses(*(options or self.EXACT), "--checkpoint", checkpoint, **settings)
        return losses, weights_of(checkpoint)

    def alone(self, **settings):
        return self.trained(alone=True, batch=len(self.documents), **settings)

    def same(self, found, expected, bound=1e-12):
        for one, other in zip(found[0], expected[0], strict=True):
            self.assertLess(abs(one - other), bound * abs(other))
        self.assertEqual(found[1].keys(), expected[1].keys())
        for name, weights in expected[1].items():
            largest = max(map(abs, weights))
            difference = max(abs(a - b) for a, b in zip(found[1][name], weights, strict=True))
            self.assertLessEqual(difference, bound * largest, name)

    def differs(self, found, expected):
        self.assertGreater(abs(found[0][0] - expected[0][0]), 1e-4 * abs(expected[0][0]))

    def test_a_mesh_trains_as_the_documents_alone(self):
        alone = self.alone(apart=False)  # causal attention needs no runs if a sample is one document
        self.same(self.alone(), alone)
        for mesh in MESHES:
            with self.subTest(mesh=mesh):
                self.same(self.trained(**mesh), alone)

    def test_what_is_wrong_is_seen(self):
        alone = self.alone()
        self.differs(self.trained(apart=False), alone)    # attention crosses documents
        self.differs(self.trained(restart=False), alone)  # other positions

    def test_encoders_see_the_whole_document(self):
        alone = self.alone(encoder=True)
        for mesh in ({}, {"dp": 2, "micro": 2}, {"tp": 2, "pp": 2, "micro": 2}):
            with self.subTest(mesh=mesh):
                self.same(self.trained(encoder=True, **mesh), alone)

    def test_a_resumed_run_reads_the_streams_that_follow(self):
        """Two steps of four streams are an epoch; the run ends in the middle of the second one."""
        whole = self.trained(batch=4, steps=5)
        half = {"batch": 4, "steps": 3}
        for order, same in (("epochs", True), ("random", False)):
            losses, _ = self.trained(**half, order=order)
            (self.assertEqual if same else self.assertNotEqual)(losses, whole[0][:3])
        self.trained(**half)
        shutil.copytree(self.folder / "checkpoint", self.folder / "half", dirs_exist_ok=True)
        rest, weights = self.trained("--resume", self.folder / "half", *self.EXACT, batch=4, steps=5, dp=2)
        self.same((rest, weights), (whole[0][3:], whole[1]))
        for changed, text in (({"long": "split"}, 'samples are documents that end with 5, long = "split", and were '
                                                  'documents that end with 5, long = "error"'),
                              ({"eot": 6, "long": "split"}, "samples are documents that end with 6")):
            done = self.prun(self.PLAN, "--resume", self.folder / "half", *self.EXACT, code=16, **{**half, **changed})
            self.assertIn(text, done.stderr)

    def test_long_documents(self):
        """Pieces of a long document are documents; a truncated one ends at the capacity."""
        draw = random.Random(3)
        long = [draw.randrange(6, VOCAB) for _ in range(2 * CAPACITY + 9)] + [END]
        pieces = [long[:CAPACITY], long[CAPACITY:2 * CAPACITY], long[2 * CAPACITY:]]
        self.write_tokens("long.bin", [self.documents[0], long])
        self.addCleanup(self.write_alone, self.documents)
        for rule, alone in (("split", pieces), ("truncate", pieces[:1])):
            alone = [self.documents[0], *alone]
            self.write_alone(alone)
            expected = self.trained(alone=True, batch=len(alone), steps=2)
            streams = streams_of(map(len, alone))
            self.same(self.trained(path="long.bin", long=rule, batch=streams, steps=2), expected)

    def test_evaluations_are_those_of_one_rank(self):
        losses = [self.evaluated(**mesh) for mesh in ({}, {"dp": 2, "micro": 2}, {"cp": 2, "share": "documents"})]
        for found in losses[1:]:
            self.assertLess(abs(found - losses[0]), 1e-12 * losses[0])

    def evaluated(self, **settings):
        [loss] = self.losses(key="eval_loss", batch=4, steps=1, eval=2, **settings)
        return loss

    def test_flops_are_those_of_the_documents(self):
        """A stream that is one document has all pairs of tokens; others have the documents' part of them."""
        self.write_tokens("one.bin", [[7] * (CAPACITY - 1) + [END]] * STREAMS)
        lengths = [len(document) for document in self.documents]
        part = sum(length**2 for length in lengths) / (sum(lengths) * CAPACITY)
        product = 2 * STREAMS * CAPACITY * (CAPACITY // 2) * 16  # one GEMM of causal attention of width 16
        both_layers = 2 * (2 + 4) * product                      # forward and backward
        missing = self.flops(path="one.bin") - self.flops(path="documents.bin")
        self.assertAlmostEqual(missing / both_layers, 1 - part, 6)

    def flops(self, **settings):
        simulated = json.loads(self.prun("sim", self.PLAN, *self.EXACT, "--json", "--cluster", CLUSTER, **settings).stdout)
        return simulated["tflops_per_device"] * simulated["step_s"] * 1e12

    def test_a_step_without_targets_is_an_error(self):
        self.write_tokens("ends.bin", [[END]] * 100)
        done = self.prun(self.PLAN, *self.EXACT, code=2, path="ends.bin", batch=2)
        self.assertIn("ends.bin: none of the 64 targets of step 1 counts in the loss", done.stderr)

    def test_built_in_models(self):
        for model in ("gpt", "llama", "moe", "mixtral"):
            alone = self.alone(model=model)
            for mesh in ({}, {"dp": 2, "tp": 2, "zero": 3, "micro": 2}):
                with self.subTest(model=model, mesh=mesh):
                    self.same(self.trained(model=model, **mesh), alone)


MESHES = [{}, {"micro": 4}, {"dp": 2, "micro": 2}, {"dp": 4, "zero": 3}, {"tp": 2}, {"pp": 2, "micro": 4},
          {"dp": 2, "zero": 1, "tp": 2, "micro": 2}, {"pp": 2, "dp": 2, "zero": 3, "micro": 2, "schedule": "zb_h1"},
          {"cp": 2}, {"cp": 4, "share": "documents", "micro": 2}, {"dp": 2, "cp": 2, "zero": 3, "share": "documents"},
          {"cp": 2, "tp": 2, "share": "documents"}, {"pp": 2, "cp": 2, "micro": 2, "share": "documents"},
          {"pp": 2, "dp": 2, "cp": 2, "tp": 2, "micro": 2, "share": "documents"}]

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
