#!/usr/bin/env python3
"""Data continue after the last sample that a checkpoint has trained with, whatever the batch size and mesh; data are
identified by their content. Usage: data_course_test.py PRUN
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent
COUNT = 12


def npy(values, kind="f", descr="<f4", shape=None):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({', '.join(map(str, shape or [len(values)]))},), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + struct.pack(f"<{len(values)}{kind}", *values)


def powers(count):
    return [2.0 ** i for i in range(count)]


class Course(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-course-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("x.npy", npy(powers(COUNT)))

    def write(self, name, data):
        (self.folder / name).write_bytes(data)

    def prun(self, *words, code=0):
        done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=100, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def train(self, *options, plan="powers.lua", ranks=1, code=0, **settings):
        """Returns the finished run and its rows of metrics."""
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        done = self.prun(HERE / plan, "--nproc", ranks, "--metrics", metrics, *options, *sets, code=code)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        return done, [row for row in rows if "loss" in row]

    def weight(self, **settings):
        _, [row] = self.train(steps=1, batch=1, **settings)
        self.assertIn(row["tokens"], (1, 2))
        _, [row] = self.train(steps=1, batch=COUNT, **settings)
        return row["loss"] * COUNT / (2 ** COUNT - 1)

    def samples(self, rows, batches):
        """Returns the samples of each row's step, which had the given batch size."""
        if not hasattr(self, "unit"):
            self.unit = self.weight()
        taken = []
        for row, batch in zip(rows, batches, strict=True):
            total = row["loss"] * batch / self.unit
            self.assertAlmostEqual(total, round(total), delta=0.01)
            taken.append([i for i in range(COUNT) if round(total) >> i & 1])
            self.assertEqual(len(taken[-1]), batch, "a sample twice in a step")
        return taken


class OtherBatch(Course):
    def test_it_goes_on_behind_the_last_sample(self):
        _, first = self.train("--checkpoint", "d", batch=4, steps=2)
        _, rest = self.train("--checkpoint", "d", "--resume", "auto", batch=2, steps=4)
        self.assertEqual([row["tokens"] for row in first + rest], [4, 8, 10, 12])
        taken = self.samples(first + rest, [4, 4, 2, 2])
        self.assertEqual(sorted(sum(taken, [])), list(range(COUNT)))

    def test_several_changes_of_batch_mesh_and_microbatches(self):
        """Two epochs with a step that crosses their border take the samples of one run with batches of one."""
        alone = [row["loss"] for row in self.train(batch=1, steps=24)[1]]
        tokens = []
        for number, (batch, steps, ranks, micro) in enumerate([(4, 2, 2, 2), (1, 3, 1, 1), (6, 4, 3, 1), (2, 6, 2, 1), (5, 7, 1, 1)]):
            before = ["--resume", "auto"] if number else []
            _, rows = self.train("--checkpoint", "d", *before, ranks=ranks, batch=batch, steps=steps, micro=micro)
            for row in rows:
                at = row["tokens"] - batch
                self.assertAlmostEqual(row["loss"], sum(alone[at:at + batch]) / batch, delta=1e-4 * abs(row["loss"]))
                tokens.append(row["tokens"])
        self.assertEqual(tokens, [4, 8, 9, 15, 17, 19, 24])

    def test_random_and_generated_samples(self):
        alone = [row["loss"] for row in self.train(batch=1, steps=12, order="random")[1]]
        self.train("--checkpoint", "d", batch=4, steps=2, order="random")
        _, rows = self.train("--resume", "d", batch=2, steps=4, order="random")
        for row, pair in zip(rows, (alone[8:10], alone[10:12]), strict=True):
            self.assertAlmostEqual(row["loss"], sum(pair) / 2, delta=1e-4 * abs(row["loss"]))

    def test_a_restart_with_fewer_ranks_and_a_smaller_batch(self):
        """The batch size follows the ranks: 4 on two ranks, 2 on the remaining one."""
        _, rows = self.train("--checkpoint", "d", ranks=2, per_rank=2, steps=2)
        done, rest = self.train("--checkpoint", "d", "--resume", "auto", "--min-ranks", 1, "--chaos", "kill:rank=1@step=3",
                                ranks=2, per_rank=2, steps=4)
        self.assertIn("goes on with fewer ranks from step 2", done.stderr)
        self.assertEqual([row["tokens"] for row in rows + rest], [4, 8, 10, 12])
        self.assertEqual(sorted(sum(self.samples(rows + rest, [4, 4, 2, 2]), [])), list(range(COUNT)))

    def test_what_was_left_out_stays_out(self):
        """The third batch of two samples has a NaN. The run then continues with batches of three."""
        alone = sum(self.samples(self.train(batch=1, steps=12)[1], [1] * 12), [])
        done, rows = self.train("--checkpoint", "d", "--checkpoint-every", 1, "--non-finite", "rollback", "--max-restarts", 1,
                                "--chaos", "nan:rank=0@step=3", batch=2, steps=3)
        self.assertIn("without batch 3\n", done.stderr)
        self.assertEqual(self.samples(rows, [2, 2, 2])[-1], sorted(alone[6:8]))
        done, rows = self.train("--checkpoint", "d", "--resume", "auto", "--non-finite", "rollback", "--max-restarts", 1,
                                "--chaos", "nan:rank=0@step=4", "--checkpoint-every", 1, batch=1, steps=4)
        self.assertIn("without sample 9\n", done.stderr)
        self.assertEqual(self.samples(rows, [1])[-1], [alone[9]])
        _, rows = self.train("--resume", "d", "--checkpoint", "e", batch=2, steps=5)
        self.assertEqual(self.samples(rows, [2])[-1], sorted(alone[10:12]))
        self.assertEqual(rows[0]["tokens"], 9)
        index = json.loads((self.folder / "e/step_00000005/index.json").read_text())
        self.assertEqual((index["left_out_samples"], index["samples"]), ([4, 6, 8, 9], 9))

    def test_a_checkpoint_of_before(self):
        """A checkpoint of format 1 has steps, skipped batches and no fingerprint."""
        self.train("--checkpoint", "d", batch=2, steps=3)
        path = self.folder / "d/step_00000003/index.json"
        index = json.loads(path.read_text())
        index.update(version=1, left_out_batches=[1, 2], kernels=index["implementation"])
        index["data"]["samples"] = index["samples"]
        for key in ("samples", "tokens", "left_out_samples", "skipped_steps", "arithmetic", "implementation", "algorithms"):
            del index[key]
        del index["data"]["identity"]
        path.write_text(json.dumps(index))
        alone = sum(self.samples(self.train(batch=1, steps=12)[1], [1] * 12), [])
        _, rows = self.train("--resume", "d", batch=4, steps=4)
        self.assertEqual(self.samples(rows, [4])[-1], sorted(alone[8:12]))
        self.assertEqual(rows[0]["tokens"], 10)
        shown = self.prun("ckpt", "show", "d").stdout
        self.assertIn("6 samples read if all batches had one size\ncontent        not known: ", shown)
        shutil.move(self.folder / "x.npy", self.folder / "y.npy")
        done, _ = self.train("--resume", "d", batch=4, steps=4, path="y.npy")
        self.assertRegex(done.stderr, r"whether \S*y.npy has the content of \S*x.npy is not known")
        self.write("y.npy", npy(powers(COUNT + 1)))
        done, _ = self.train("--resume", "d", batch=4, steps=4, path="y.npy", code=16)
        self.assertRegex(done.stderr, r"\S*y.npy has \d+ bytes, and \S*x.npy had \d+; use those, or add --new-data")


class Identity(Course):
    def setUp(self):
        super().setUp()
        self.train("--checkpoint", "d", batch=4, steps=2)

    def refused(self, *words, **settings):
        done, _ = self.train("--resume", "d", code=16, **{"steps": 4, "batch": 2, **settings})
        for text in words:
            self.assertIn(text, done.stderr)
        self.assertIn("add --new-data to go on with the first sample of these", done.stderr)
        self.assertRegex(done.stderr, r"^prun: \S*powers.lua:11: the data are not those that d/step_00000002 was trained with: ")

    def goes_on(self, *options, **settings):
        done, rows = self.train("--resume", "d", *options, **{"steps": 4, "batch": 2, **settings})
        return done.stderr, rows

    def test_a_moved_file_is_the_same(self):
        shutil.move(self.folder / "x.npy", self.folder / "y.npy")
        said, rows = self.goes_on(path="y.npy")
        self.assertEqual(said, "")
        self.assertEqual([row["tokens"] for row in rows], [10, 12])

    def test_what_differs_is_named(self):
        self.refused("their order is 'random', and was 'epochs'", order="random")
        self.refused("training has 10 samples of them, and had 12 (an evaluation holds out another part)", hold_out=0.2)
        self.write("y.npy", npy(powers(COUNT)[:-1] + [1.0]))
        self.refused("y.npy has other content in the 48 B from byte 128 on", path="y.npy")
        self.write("y.npy", npy(powers(COUNT), "d", "<f8"))
        self.refused("y.npy holds float64, and they held float32", path="y.npy")
        self.write("y.npy", npy(powers(COUNT + 1)))
        self.refused("y.npy has grown from 12 numbers to 13 (the first 12 are as before)", path="y.npy")
        self.write("y.npy", npy([1.0] + powers(COUNT)))
        self.refused("y.npy has other content in the 48 B from byte 128 on; it has 13 numbers, and they had 12", path="y.npy")
        self.write("y.npy", npy(powers(COUNT - 1)))
        self.refused("y.npy has shrunk from 12 numbers to 11", path="y.npy")
        done, _ = self.train("--resume", "d", code=16, steps=4, seed=5)
        self.assertIn("was trained with seed 0, this plan has 5: its data would come in another order", done.stderr)

    def test_new_data_begin_at_their_first_sample(self):
        reversed_powers = powers(COUNT)[::-1]
        self.write("y.npy", npy(reversed_powers))
        _, alone = self.train(batch=3, steps=2, path="y.npy")
        done, rows = self.train("--resume", "d", "--checkpoint", "e", "--new-data", batch=3, steps=4, path="y.npy")
        self.assertIn("prun: step 3 begins with the first sample of other data (--new-data): ", done.stderr)
        self.assertEqual([row["loss"] for row in rows], [row["loss"] for row in alone])
        self.assertEqual([row["tokens"] for row in rows], [11, 14])
        # Later runs use the new data, with the option and without it.
        for options in ([], ["--new-data"]):
            done, [row] = self.train("--resume", "e", *options, batch=6, steps=5, path="y.npy")
            self.assertEqual(done.stderr, "")
            self.assertEqual(row["loss"], self.train(batch=6, steps=2, path="y.npy")[1][1]["loss"])

    def test_new_data_are_left_out_after_a_restart(self):
        self.write("y.npy", npy(powers(COUNT)[::-1]))
        _, alone = self.train(batch=1, steps=12, path="y.npy")
        done, rows = self.train("--resume", "d", "--checkpoint", "e", "--checkpoint-every", 9, "--new-data", "--non-finite", "rollback", "--max-restarts", 1,
                                "--chaos", "nan:rank=0@step=3", batch=2, steps=3, path="y.npy")
        self.assertIn("without samples 1-2\n", done.stderr)
        self.assertAlmostEqual(2 * rows[-1]["loss"], alone[2]["loss"] + alone[3]["loss"], delta=1e-3)

    def test_nodes_compare_their_data(self):
        """In a mount namespace of its own, node 1 has another file at the path."""
        self.write("other.npy", npy(powers(COUNT)[:-1] + [1.0]))
        if subprocess.run(["unshare", "-m", "mount", "--bind", "other.npy", "x.npy"], cwd=self.folder, capture_output=True).returncode != 0:
            self.skipTest("no mount namespace can be made here")
        for behind, code in ((["unshare", "-m", "bash", "-c", 'mount --bind other.npy x.npy; exec "$0" "$@"'], 2), ([], 0)):
            words = [PRUN, str(HERE / "powers.lua"), "--nproc", "1", "--nnodes", "2", "--rendezvous", f"unix:{self.folder.name}-{code}"]
            other = subprocess.Popen([*behind, *words, "--node-rank", "1"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(other.kill)
            done = self.prun(*words[1:], "--node-rank", 0, code=code)
            self.assertEqual(other.wait(60), code)
            self.assertEqual("node 1 has other data than node 0: x.npy has other content in the 48 B from byte 128 on" in done.stderr, code > 0)

    def test_shards_may_be_cut_otherwise(self):
        ids = struct.pack("<40H", *range(40))
        self.write("all.bin", ids)
        for number, (begin, end) in enumerate([(0, 14), (14, 15), (15, 40)]):
            self.write(f"shard_{number}.bin", ids[2 * begin:2 * end])
        self.train("--checkpoint", "t", plan="windows.lua", path="all.bin", steps=1)
        done, [row] = self.train("--resume", "t", plan="windows.lua", path="shard_*.bin", steps=2, batch=1)
        self.assertEqual((done.stderr, row["tokens"]), ("", 12))
        done, _ = self.train("--resume", "t", plan="windows.lua", path="shard_*.bin", steps=2, context=8, code=16)
        self.assertIn("a sample has 8 tokens, and had 4 (context)", done.stderr)
        done, [row] = self.train("--resume", "t", "--new-data", plan="windows.lua", path="shard_*.bin", steps=2, context=8)
        self.assertEqual(row["tokens"], 24)
        self.write("shard_0.bin", ids[2:28])
        self.write("shard_1.bin", ids[:2] + ids[28:30])
        done, _ = self.train("--resume", "t", plan="windows.lua", path="shard_*.bin", steps=2, code=16)
        self.assertIn("shard_0.bin has other content in the 80 B from byte 0 on", done.stderr)

    def test_new_data_need_a_checkpoint(self):
        done, _ = self.train("--new-data", code=2)
        self.assertIn("--new-data is for --resume, which is missing", done.stderr)

    def test_shown(self):
        shown = self.prun("ckpt", "show", "d").stdout
        self.assertRegex(shown, r"data +arrays in epochs \S*x.npy \(176 B\), 8 samples read\ncontent +x: 12 of f32, 1 block sampled\n")
        data = json.loads(self.prun("ckpt", "show", "d", "--json").stdout)
        identity = data["data"]["identity"]
        self.assertEqual((data["samples"], data["tokens"], identity["order"], identity["count"]), (8, 8, "epochs", 12))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
