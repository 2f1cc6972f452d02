#!/usr/bin/env python3
"""Inputs by name from arrays: several files of an input, the order as given, every mesh, and refusals.
Usage: inputs_test.py PRUN
"""
import pathlib
import sys
import unittest

from inputs import CONTEXT, MESHES, SAMPLES, Inputs

Inputs.prun_path = str(pathlib.Path(sys.argv[1]).resolve())


class Arrays(Inputs):
    def test_every_mesh_reads_the_same_samples(self):
        alone = self.losses(steps=4)
        for mesh in MESHES:
            self.assert_close(self.losses(steps=4, **mesh), alone)
        self.assertGreater(abs(self.losses(steps=4, order="epochs")[0] - alone[0]), 1e-6)

    def test_refusals(self):
        def refused(*expected, code=3, **settings):
            done = self.run_prun([self.prun_path, "check", *self.words(**settings)[1:]], code)
            for words in expected:
                self.assertIn(words, done.stderr)

        refused("the last batch of an epoch has 4 samples of 8 (20 in all)", "last = \"error\"", last="error")
        refused("gives no 'lables' (did you mean 'labels'?)", wrong="lables")
        self.write("short", "<i8", "q", self.labels[:19])
        refused("short.npy has 19 samples", f"has {SAMPLES}", labels="short.npy")
        self.write("labels_f", "<f4", "f", [[0.0] * CONTEXT] * SAMPLES)
        refused("inputs.lua:34", "the target tensor is f32, should be i32", labels="labels_f.npy")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
