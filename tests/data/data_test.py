#!/usr/bin/env python3
"""Data of a plan, through the prun command. The same tokens train alike for every sharding and dtype; orders are the
same on every mesh and after a resume; evaluations use held-out samples; numpy arrays train; and invalid data are
rejected before launch, with both sides of the contradiction. Usage: data_test.py PRUN
"""
import array
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent
COUNT, VOCAB = 5000, 300


def ids(count, seed=1):
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(count)]


def words(values, kind="H"):
    return array.array(kind, values).tobytes()


def llmc(values, magic=20240520, version=1, kind="H", count=None):
    return struct.pack("<256i", magic, version, len(values) if count is None else count, *[0] * 253) + words(values, kind)


def npy(descr, shape, data, version=1, fortran=False):
    text = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({', '.join(map(str, shape))},), }}"
    text += " " * (-(len(text) + 11 + 2 * version) % 64) + "\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text.encode() + data


class Data(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-data-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, data):
        (self.folder / name).write_bytes(data)

    def prun(self, *arguments):
        return subprocess.run([PRUN, *map(str, arguments)], capture_output=True, text=True, timeout=100, cwd=self.folder)

    def losses(self, plan, *options, ranks=1, key="loss", **settings):
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        done = self.prun(HERE / plan, "--nproc", ranks, "--metrics", metrics, *options, *sets)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [row[key] for row in map(json.loads, metrics.read_text().splitlines()) if key in row]

    def refused(self, plan, *expected, ranks=1, **settings):
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        for command in (["check"], []):
            done = self.prun(*command, HERE / plan, "--nproc", ranks, *sets)
            self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
            for text in expected:
                self.assertIn(text, done.stderr)


class Tokens(Data):
    def setUp(self):
        super().setUp()
        self.ids = ids(COUNT)
        self.write("plain.bin", words(self.ids))

    def test_the_same_tokens_however_they_are_written(self):
        self.write("llmc.bin", llmc(self.ids))
        self.write("wide.bin", llmc(self.ids, 20240801, 7, "I"))
        self.write("raw_wide.bin", words(self.ids, "I"))
        for i, (begin, end) in enumerate([(0, 1999), (1999, 2000), (2000, COUNT)]):
            self.write(f"shard_{i}.bin", llmc(self.ids[begin:end]))
        self.write("shard_9.txt", b"no shard")
        plain = self.losses("tokens.lua", path="plain.bin")
        for path, more in (("llmc.bin", {}), ("wide.bin", {}), ("raw_wide.bin", {"dtype": "uint32"}), ("shard_*.bin", {}),
                           ("llmc.bin", {"skip": 1024})):
            self.assertEqual(self.losses("tokens.lua", path=path, **more), plain, path)
        shown = self.prun("dump", HERE / "tokens.lua", "--set", "path=shard_*.bin").stdout
        self.assertIn("tokens shard_0.bin to shard_2.bin, 8 samples a step", shown)

    def test_an_order_is_the_same_on_every_mesh(self):
        for order in ("random", "epochs"):
            alone = self.losses("tokens.lua", path="plain.bin", order=order)
            for ranks, settings in ((2, {}), (2, {"cp": 2}), (2, {"micro": 2}), (4, {"cp": 2})):
                for one, other in zip(alone, self.losses("tokens.lua", ranks=ranks, path="plain.bin", order=order, **settings)):
                    self.assertAlmostEqual(one, other, delta=2e-5)
        self.assertNotEqual(self.losses("tokens.lua", path="plain.bin"), alone)

    def test_a_resumed_run_goes_on_to_the_bit(self):
        # An epoch has 156 windows, so the 20th step is in the second.
        for order in ("random", "epochs"):
            self.write("plain.bin", words(self.ids))
            whole = self.losses("tokens.lua", path="plain.bin", order=order, steps=24)
            kept = self.folder / f"kept-{order}"
            self.losses("tokens.lua", "--checkpoint", kept, path="plain.bin", order=order, steps=18)
            rest = self.losses("tokens.lua", "--resume", kept, path="plain.bin", order=order, steps=24)
            self.assertEqual(rest, whole[18:])
        self.write("less.bin", words(self.ids[:4000]))
        done = self.prun(HERE / "tokens.lua", "--resume", kept, "--set", "steps=24", "--set", "path=less.bin", "--set", "order=epochs")
        self.assertEqual(done.returncode, 16, done.stderr)
        self.assertIn("less.bin has shrunk from 5000 tokens to 4000; use those, or add --new-data", done.stderr)
        self.write("plain.bin", words(self.ids[:4000]))
        done = self.prun(HERE / "tokens.lua", "--resume", kept, "--set", "steps=24", "--set", "path=plain.bin")
        self.assertEqual(done.returncode, 16, done.stderr)
        self.assertIn("plain.bin has shrunk from 5000 tokens to 4000; their order is 'random', and was 'epochs'; use those", done.stderr)

    def test_the_loss_does_not_cross_documents(self):
        self.write("ends.bin", words([7] * COUNT))
        done = self.prun(HERE / "tokens.lua", "--set", "path=ends.bin", "--set", "ends=7")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("ends.bin: none of the 256 targets of step 1 counts in the loss, because all are ignored", done.stderr)
        self.write("two.bin", words([7, 5] * (COUNT // 2)))
        both = self.losses("tokens.lua", path="two.bin", eval=1)[0]
        parts = [self.losses("tokens.lua", path="two.bin", eval=1, ends=end)[0] for end in (5, 7)]
        self.assertAlmostEqual(both, sum(parts) / 2, delta=1e-5)
        self.assertGreater(min(parts), 0.8 * both)
        for order in ("random", "epochs"):
            alone = self.losses("tokens.lua", path="plain.bin", order=order, ends=9)
            self.assertNotEqual(alone, self.losses("tokens.lua", path="plain.bin", order=order))
            for ranks, settings in ((2, {}), (2, {"cp": 2}), (2, {"tp": 2}), (4, {"tp": 2, "micro": 2}), (4, {"cp": 2})):
                for one, other in zip(alone, self.losses("tokens.lua", ranks=ranks, path="plain.bin", order=order, ends=9, **settings)):
                    self.assertAlmostEqual(one, other, delta=2e-5)
            kept = self.folder / f"ends-{order}"
            whole = self.losses("tokens.lua", path="plain.bin", order=order, ends=9, steps=6)
            self.losses("tokens.lua", "--checkpoint", kept, path="plain.bin", order=order, ends=9, steps=3)
            self.assertEqual(self.losses("tokens.lua", "--resume", kept, path="plain.bin", order=order, ends=9, steps=6), whole[3:])
        proved = self.prun("check", HERE / "tokens.lua", "--prove", "--nproc", 4, "--set", "tp=2", "--set", "path=plain.bin", "--set", "ends=9")
        self.assertIn("proven: equals one rank", proved.stdout, proved.stderr)
        shown = self.prun("dump", HERE / "tokens.lua", "--set", "path=plain.bin", "--set", "ends=9").stdout
        self.assertIn("tokens plain.bin, documents end with 9, 8 samples a step", shown)
        self.refused("tokens.lua", "tokens.lua:9: data: document_end is 300, and the largest token is 299 (vocab 300)", path="plain.bin", ends=300)
        self.refused("tokens.lua", "data: no document ends with 299 (document_end): it is nowhere in two.bin", path="two.bin", ends=299)

    def test_an_evaluation_has_the_end_of_the_file_and_training_the_rest(self):
        held = self.prun("dump", HERE / "tokens.lua", "--set", "path=plain.bin", "--set", "eval=2").stdout
        self.assertIn("tokens plain.bin, 4750 from 0 on, 8 samples a step", held)
        self.assertIn("tokens plain.bin, 250 from 4750 on\n", held)
        # Changed tokens at the end affect only the evaluation, not the training.
        self.write("end.bin", words(self.ids[:4750] + [7] * 250))
        for order in ("random", "epochs"):
            settings = {"order": order, "eval": 2}
            self.assertEqual(self.losses("tokens.lua", path="end.bin", **settings),
                             self.losses("tokens.lua", path="plain.bin", **settings))
            self.assertNotEqual(self.losses("tokens.lua", key="eval_loss", path="end.bin", **settings),
                                self.losses("tokens.lua", key="eval_loss", path="plain.bin", **settings))
        # An evaluation with data of its own does not change the training.
        self.write("validation.bin", words(self.ids[4750:]))
        self.assertEqual(self.losses("tokens.lua", path="plain.bin", eval=2, own="validation.bin"),
                         self.losses("tokens.lua", path="plain.bin"))

    def test_evaluations_on_what_is_trained_with_are_said(self):
        done = self.prun("check", HERE / "tokens.lua", "--set", "path=plain.bin", "--set", "own=plain.bin", "--set", "eval=2")
        self.assertIn("tokens.lua:20: evaluations read the files that are trained with", done.stderr)

    def test_what_does_not_fit_is_refused_before_launch(self):
        first = next(i for i, one in enumerate(self.ids) if one == 299)
        self.refused("tokens.lua", "tokens.lua:7: data: ", f"plain.bin has the id 299 at position {first} (byte {2 * first})",
                     "the table 'embed.token.weight' has 299 rows", "the largest id of the data is 299, so 300 are needed",
                     path="plain.bin", vocab=299)
        self.write("header.bin", struct.pack("<256i", 77777777, 1, COUNT, *[0] * 253) + words(self.ids))
        self.refused("tokens.lua", "when a header stands before them, skip_bytes = 1024", path="header.bin")
        self.write("shard_0.bin", words([1] * 100))
        self.write("shard_1.bin", words([1] * 50 + [300] + [1] * 50))
        self.refused("tokens.lua", "shard_1.bin has the id 300 at position 50 (byte 100)", path="shard_*.bin")
        # Files of evaluations are checked too.
        self.refused("tokens.lua", "shard_1.bin has the id 300", path="plain.bin", eval=2, own="shard_1.bin")

    def test_headers_that_promise_something_else(self):
        self.write("cut.bin", llmc(self.ids[:100], count=120))
        self.refused("tokens.lua", "cut.bin: its header counts 120 tokens, and there are 100: it has been cut", path="cut.bin")
        self.write("newer.bin", llmc(self.ids, version=2))
        self.refused("tokens.lua", "its header of llm.c is of version 2, and version 1 is known", path="newer.bin")
        self.write("llmc.bin", llmc(self.ids))
        self.refused("tokens.lua", "it has a header of 1024 bytes, and skip_bytes is 0; omit it", path="llmc.bin", skip=0)
        self.refused("tokens.lua", "its header says uint16, and dtype is 'uint32'", path="llmc.bin", dtype="uint32")
        self.write("x.npy", npy("<u2", [COUNT], words(self.ids)))
        self.refused("tokens.lua", "x.npy: it is an array of numpy: write its ids with .tofile", path="x.npy")
        self.write("mixed_1.bin", llmc(self.ids))
        self.write("mixed_2.bin", llmc(self.ids, 20240801, 7, "I"))
        self.refused("tokens.lua", "mixed_1.bin holds uint16 and ", "mixed_2.bin uint32", path="mixed_*.bin")
        self.refused("tokens.lua", "no file 'none_*.bin'", path="none_*.bin")
        self.write("few.bin", words(self.ids[:43]))
        self.refused("tokens.lua", "which leaves 10 to train with, and a sample needs 33: lower hold_out", path="few.bin", eval=1)


class Arrays(Data):
    def setUp(self):
        super().setUp()
        draw = random.Random(2)
        self.y = [draw.randrange(3) for _ in range(100)]
        self.x = [min(255, draw.randrange(60) + 80 * label) for label in self.y for _ in range(48)]
        self.write("x.npy", npy("|u1", [100, 4, 4, 3], bytes(self.x)))
        self.write("y.npy", npy("<i8", [100], words(self.y, "q")))

    def test_pictures_train_in_any_type_and_on_any_mesh(self):
        bytes_of = {"<f4": ("f", float), "<f8": ("d", float)}
        ours = self.losses("pictures.lua")
        self.assertLess(ours[-1], 0.6 * ours[0])
        for descr, (kind, to) in bytes_of.items():
            self.write("floats.npy", npy(descr, [100, 48], words(map(to, self.x), kind), version=2))
            self.assertEqual(self.losses("pictures.lua", x="floats.npy"), ours, descr)
        for descr, kind in (("<i4", "i"), ("|u1", "B")):
            self.write("labels.npy", npy(descr, [100], words(self.y, kind)))
            self.assertEqual(self.losses("pictures.lua", y="labels.npy"), ours, descr)
        for one, other in zip(ours, self.losses("pictures.lua", ranks=2)):
            self.assertAlmostEqual(one, other, delta=1e-4)

    def test_numpy_writes_what_is_read(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy")
        ours = self.losses("pictures.lua", steps=5)
        numpy.save(self.folder / "n.npy", numpy.array(self.x, "float32").reshape(100, 4, 4, 3))
        numpy.save(self.folder / "m.npy", numpy.array(self.y))
        self.assertEqual(self.losses("pictures.lua", steps=5, x="n.npy", y="m.npy"), ours)

    def test_evaluations_have_the_last_samples(self):
        settings = {"eval": 5, "steps": 10}
        ours = self.losses("pictures.lua", **settings)
        self.write("y.npy", npy("<i8", [100], words(self.y[:80] + [0] * 20, "q")))
        self.assertEqual(self.losses("pictures.lua", **settings), ours)

    def test_check_proves_them(self):
        self.assertIn("proven: equals one rank", self.prun("check", HERE / "pictures.lua", "--nproc", 2).stdout)

    def test_a_mismatch_names_both_sides(self):
        self.refused("pictures.lua", "the model's inputs is 47, and a sample of x.npy has [4, 4, 3] = 48 numbers", inputs=47)
        self.refused("pictures.lua", "y.npy has the id 2 at position ", "there are 2 logits", "so 3 are needed", classes=2)
        self.write("less.npy", npy("<i8", [99], words(self.y[:99], "q")))
        self.refused("pictures.lua", "x.npy has 100 samples, and less.npy has 99", y="less.npy")
        self.write("negative.npy", npy("<i4", [100], words([-1] * 100, "i")))
        self.refused("pictures.lua", "has the id -1 at position 0", "ids count from 0", y="negative.npy")
        self.write("low.npy", npy("<i4", [100], words([-100] * 99 + [-99], "i")))
        self.refused("pictures.lua", "has the id -99 at position 0 of sample 99", "the loss ignores only -100 (ignore)", y="low.npy")
        self.write("cut.npy", npy("<i8", [100], words(self.y[:50], "q")))
        self.refused("pictures.lua", "its header promises [100] of int64, ", "it has been cut", y="cut.npy")
        self.write("nan.npy", npy("<f4", [100, 48], words([float("nan")] + [0.0] * 4799, "f")))
        self.refused("pictures.lua", "nan.npy has nan at position 0", "which is no number of 32 bits", x="nan.npy")
        self.write("text.npy", b"no array at all")
        self.refused("pictures.lua", "text.npy: not a .npy file; numpy.save(file, array) writes one", x="text.npy")
        self.write("fortran.npy", npy("<f4", [100, 48], words([0.0] * 4800, "f"), fortran=True))
        self.refused("pictures.lua", "save numpy.ascontiguousarray(a)", x="fortran.npy")
        self.write("floats.npy", npy("<f4", [100, 48], words([0.0] * 4800, "f")))
        self.refused("pictures.lua", "holds float32; ids are integers: save a.astype('int32')", x="floats.npy", x_as="ids")
        self.refused("pictures.lua", "axis 'cp' divides the tokens of samples, and no input of this model has any", cp=2, ranks=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
