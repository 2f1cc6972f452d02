#!/usr/bin/env python3
"""Inputs by name from arrays: several files of an input, the order as given, every mesh, and refusals.
Usage: inputs_test.py PRUN
"""
import array
import json
import pathlib
import struct
import sys
import unittest

from inputs import CONTEXT, MESHES, SAMPLES, VOCAB, Inputs, bf16, npy, safetensors

Inputs.prun_path = str(pathlib.Path(sys.argv[1]).resolve())


class Arrays(Inputs):
    def test_every_mesh_reads_the_same_samples(self):
        alone = self.losses(steps=4)
        for mesh in MESHES:
            self.assert_close(self.losses(steps=4, **mesh), alone)
        self.assertGreater(abs(self.losses(steps=4, order="epochs")[0] - alone[0]), 1e-6)

    def test_context_parallelism_splits_the_inputs_that_have_tokens(self):
        """Numbers and ids of tokens are split, numbers of a sample are not, even if they are as many as tokens."""
        def side():
            rows = (self.folder / "metrics.jsonl").read_text().splitlines()
            return [row["side"] for row in map(json.loads, rows) if "side" in row]

        alone = self.losses(steps=3, more="true")
        metric = side()
        self.assertEqual(len(metric), 3)
        for mesh in ({"cp": 2}, {"cp": 4}, {"cp": 2, "dp": 2, "micro": 2}, {"cp": 2, "tp": 2}, {"cp": 2, "pp": 2, "micro": 2}):
            with self.subTest(mesh=mesh):
                self.assert_close(self.losses(steps=3, more="true", **mesh), alone)
                self.assert_close(side(), metric)
        done = self.run_prun([self.prun_path, "check", "--prove", *self.words(cp=2, dp=2, more="true")[1:]])
        self.assertIn("proven: equals one rank", done.stdout)

    def test_predictions_under_context_parallelism(self):
        self.run_prun(self.words("--checkpoint", "trained", more="true"))
        for output in ("logits", "side"):
            found = {}
            for mesh in ({}, {"cp": 2}, {"cp": 2, "dp": 2, "micro": 2}, {"cp": 2, "pp": 2, "micro": 2}):
                words = self.words("--from", "trained", "--out", "p.npy", "--output", output, "--device", "reference",
                                   more="true", dtype="f64", **mesh)
                self.run_prun([self.prun_path, "predict", *words[1:]])
                data = (self.folder / "p.npy").read_bytes()
                found[str(mesh)] = (data[:128], array.array("d", data[128:]))
            header, alone = found.pop("{}")
            self.assertEqual(len(alone), SAMPLES * CONTEXT * (VOCAB if output == "logits" else 1))
            for mesh, (other, numbers) in found.items():
                with self.subTest(output=output, mesh=mesh):
                    self.assertEqual(other, header)
                    self.assertLess(max(abs(a - b) for a, b in zip(numbers, alone, strict=True)), 1e-12)

    def test_elements_of_16_bits_and_safetensors(self):
        numbers = [number for row in self.frames for number in row]
        shape = (SAMPLES, CONTEXT, 3)
        half = struct.pack(f"<{len(numbers)}e", *numbers)
        (self.folder / "half.npy").write_bytes(npy("<f2", shape, half))
        for dtype, data in (("F16", half), ("BF16", array.array("H", bf16(numbers)).tobytes()),
                            ("F32", array.array("f", numbers).tobytes())):
            (self.folder / f"{dtype}.safetensors").write_bytes(safetensors(dtype, shape, data))
        alone = self.losses(more="true")
        for file in ("half.npy", "F16.safetensors", "BF16.safetensors", "F32.safetensors"):
            self.assertEqual(self.losses(more="true", frames=file), alone)
        self.assertIn("proven: equals one rank", self.run_prun([self.prun_path, "check", "--prove", *self.words(
            dp=2, more="true", frames="BF16.safetensors")[1:]]).stdout)

    def test_a_mask_of_bool(self):
        kept = [[(i * t) % 3 != 1 for t in range(CONTEXT)] for i in range(SAMPLES)]
        self.write("mask_f", "<f4", "f", kept)
        self.write("mask_b", "|b1", "b", kept)
        masked = self.losses(weights="mask_f.npy")
        self.assertEqual(self.losses(weights="mask_b.npy", dp=2), self.losses(weights="mask_f.npy", dp=2))
        self.assert_close(self.losses(weights="mask_b.npy"), masked)
        self.assertGreater(abs(masked[0] - self.losses()[0]), 1e-6)

    def test_refusals_of_files(self):
        def refused(words, data, name="wrong.npy"):
            (self.folder / name).write_bytes(data)
            done = self.run_prun([self.prun_path, "check", *self.words(more="true", frames=name)[1:]], 3)
            self.assertIn(words, done.stderr)

        shape, count = (SAMPLES, CONTEXT, 3), SAMPLES * CONTEXT * 3
        refused("its numbers are '<i2', and bool, uint8", npy("<i2", shape, bytes(2 * count)))
        refused("wrong.npy has inf at position 5 (byte", npy("<f2", shape, b"\0" * 10 + b"\0\x7c" + bytes(2 * count - 12)))
        name = "wrong.safetensors"
        refused("'frames' has elements \"F8_E4M3\", and BOOL, U8", safetensors("F8_E4M3", shape, bytes(count)), name)
        refused("its header promises [20, 8, 3] of float16, ", safetensors("F16", shape, bytes(count)), name)
        two = json.dumps({key: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for key in "ab"}).encode()
        refused("it has 2 tensors, and an input is one", len(two).to_bytes(8, "little") + two, name)
        refused("its header has 9999 bytes: save one tensor in a file", (9999).to_bytes(8, "little") + b"{}" * 3000, name)

    def test_refusals(self):
        def refused(*expected, code=3, **settings):
            done = self.run_prun([self.prun_path, "check", *self.words(**settings)[1:]], code)
            for words in expected:
                self.assertIn(words, done.stderr)

        refused("the last batch of an epoch has 4 samples of 8 (20 in all)", "last = \"error\"", last="error")
        refused("gives no 'lables' (did you mean 'labels'?)", wrong="lables")
        self.write("short", "<i8", "q", self.labels[:19])
        refused("short.npy has 19 samples", f"has {SAMPLES}", labels="short.npy")
        refused("inputs.lua:", "input 'labels': 8 tokens do not divide into the two chunks of each of the 3 ranks of "
                "axis 'cp'; the next number that does is 12", cp=3)
        self.write("labels_f", "<f4", "f", [[0.0] * CONTEXT] * SAMPLES)
        refused("inputs.lua:41", "the target tensor is f32, should be i32", labels="labels_f.npy")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
