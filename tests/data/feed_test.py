#!/usr/bin/env python3
"""prun.data.feed: batches of another process. They train as the same samples of arrays do, on every mesh and after a
resume; a feed that does not fit, ends early or fails is an error with both sides. Usage: feed_test.py PRUN
"""
import array
import itertools
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools/python"))
import prun  # noqa: E402
from inputs import CONTEXT, IGNORED, MESHES, SAMPLES, Inputs, bf16, shaped  # noqa: E402
from prun.feed import Feeder, path_of  # noqa: E402

Inputs.prun_path = str(pathlib.Path(sys.argv[1]).resolve())
BATCH = 8


class Feed(Inputs):
    def setUp(self):
        self.name = f"test-{os.getpid()}"
        self.addCleanup(lambda: self.assertFalse(os.path.exists(path_of(self.name))))

    def batches(self, first=0):
        """The samples in the order of the arrays, again and again."""
        while True:
            yield self.batch([(first + i) % SAMPLES for i in range(BATCH)])
            first += BATCH

    def feed(self, batches, **options):
        """Starts a feeder in a thread; it is joined at the end of the test."""
        feeder = Feeder(batches, self.name, **options)
        failed = []

        def run():
            try:
                feeder.run()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def end():
            feeder.stop()
            thread.join()

        self.addCleanup(end)
        return feeder, thread, failed

    def fed(self, *words, batches=None, **settings):
        feeder, thread, failed = self.feed(batches or self.batches())
        losses = self.losses(*words, **{"from": "feed", "name": self.name, **settings})
        feeder.stop()
        thread.join()
        self.assertEqual(failed, [])
        return losses

    def test_every_mesh_trains_as_with_arrays(self):
        arrays = self.losses(steps=4)
        for mesh in MESHES:
            self.assert_close(self.fed(steps=4, **mesh), arrays)
        more = [self.batch([(8 * k + i) % SAMPLES for i in range(BATCH)], more=True) for k in range(3)]
        self.assert_close(self.fed(batches=more, more="true", cp=2, dp=2), self.losses(more="true"))

    def test_elements_of_16_bits_and_bool(self):
        """Objects with a dtype, like arrays of numpy, and buffers of bool."""
        class Half:
            def __init__(self, dtype, words):
                self.dtype, self.words = dtype, words

            def view(self, kind):
                return self.words if kind == "uint16" else None

        batches = [self.batch([(8 * k + i) % SAMPLES for i in range(BATCH)], more=True) for k in range(3)]
        alone = self.fed(batches=batches, more="true")
        for element, words in (("bfloat16", bf16), ("float16", lambda x: array.array("H", struct.pack(f"<{len(x)}e", *x)))):
            narrow = [{**batch, "frames": Half(element, shaped("H", words(array.array("f", batch["frames"].tobytes())), 8, CONTEXT, 3))}
                      for batch in batches]
            self.assertEqual(self.fed(batches=narrow, more="true", element=element), alone)
        self.refused(3, f"gives 'frames' as bfloat16 [batch, {CONTEXT}, 3], and the plan declares float32 [batch, {CONTEXT}, 3]",
                     batches=[{**batches[0], "frames": Half("bfloat16", shaped("H", [0] * 24 * BATCH, 8, CONTEXT, 3))}], more="true")
        masks = [{**self.batch(range(8)), "weights": shaped(kind, [i % 3 != 1 for i in range(BATCH * CONTEXT)], 8, CONTEXT)}
                 for kind in "fB"]
        masks[1]["weights"] = masks[1]["weights"].cast("B").cast("?", (8, CONTEXT))
        self.assertEqual(self.fed(batches=masks[1:], steps=1, mask="bool"), self.fed(batches=masks[:1], steps=1))

    def test_a_job_that_begins_again_attaches_to_its_feed(self):
        arrays = self.losses(steps=6)
        seen, kept, until = [], self.folder / "again/step_00000002/index.json", time.monotonic() + 60

        def begin(cursor, samples):
            seen.append((cursor, samples))
            for self.given in itertools.count(int(cursor or 0)):
                while self.given == 3 and not kept.exists() and time.monotonic() < until:
                    time.sleep(0.01)  # the job is killed after its first checkpoint
                yield self.batch([(BATCH * self.given + i) % SAMPLES for i in range(BATCH)])

        feeder, thread, failed = self.feed(begin, cursor=lambda: str(self.given + 1))
        losses = self.losses("--checkpoint", "again", "--checkpoint-every", 2, "--max-restarts", 1, "--chaos",
                             "kill:rank=1,step=5", **{"from": "feed", "name": self.name, "steps": 6, "dp": 2})
        feeder.stop()
        thread.join()
        self.assertEqual(failed, [])
        first, (cursor, samples) = seen
        self.assertEqual(first, ("", 0))
        self.assertIn(samples, (2 * BATCH, 4 * BATCH))  # the checkpoint after step 4 may be in progress
        self.assertEqual(cursor, str(samples // BATCH))
        self.assert_close(losses, arrays)

    def test_the_last_partial_batch_of_arrays(self):
        """Padding ignores the copies, as labels of -100 do; drop begins the next epoch."""
        padding = self.batch([16, 17, 18, 19, 0, 1, 2, 3])
        labels = [label for i in range(16, 20) for label in self.labels[i]] + [IGNORED] * 4 * CONTEXT
        padding["labels"] = shaped("q", labels, BATCH, CONTEXT)
        begin = [self.batch(range(8)), self.batch(range(8, 16))]
        for mesh in ({}, {"dp": 2, "micro": 2}):
            padded = self.fed(batches=[*begin, padding, *begin], steps=5)
            self.assert_close(self.losses(steps=5, last="pad", **mesh), padded)
            dropped = self.fed(batches=[*begin, *begin, begin[0]], steps=5)
            self.assert_close(self.losses(steps=5, last="drop", **mesh), dropped)
            self.assertGreater(abs(padded[2] - dropped[2]), 1e-9)

    def test_resume_begins_at_the_cursor(self):
        arrays = self.losses(steps=6)
        seen = []

        def begin(cursor, samples):
            seen.append((cursor, samples))
            at = [int(cursor or 0)]

            def batches():
                for each in self.batches(at[0]):
                    at[0] += BATCH
                    yield each

            self.at = at
            return batches()

        for steps, first in ((3, 0), (6, 3)):
            feeder, thread, failed = self.feed(begin, cursor=lambda: str(self.at[0]), fingerprint="one")
            losses = self.losses("--checkpoint", "kept", *(["--resume", "auto"] if first else []),
                                 **{"from": "feed", "name": self.name, "steps": steps})
            feeder.stop()
            thread.join()
            self.assert_close(losses, arrays[first:steps])
            self.assertEqual(failed, [])
        self.assertEqual(seen[-1], (str(3 * BATCH), 3 * BATCH))
        self.feed(self.batches(), fingerprint="other")
        done = self.run_prun(self.words("--checkpoint", "kept", "--resume", "auto", "--device", "reference",
                                        **{"from": "feed", "name": self.name, "steps": 9, "dtype": "f64"}), 16)
        self.assertIn(f"the feed '{self.name}' has the fingerprint 'other', and had 'one'", done.stderr)

    def test_without_a_cursor_a_list_is_replayed(self):
        arrays = self.losses(steps=4)
        listed = [self.batch([(8 * k + i) % SAMPLES for i in range(BATCH)]) for k in range(4)]
        for steps, first in ((2, 0), (4, 2)):
            feeder, thread, _ = self.feed(listed)
            losses = self.losses("--checkpoint", "replayed", *(["--resume", "auto"] if first else []),
                                 **{"from": "feed", "name": self.name, "steps": steps})
            feeder.stop()
            thread.join()
            self.assert_close(losses, arrays[first:steps])

    def refused(self, code, *expected, batches=None, **settings):
        feeder, thread, _ = self.feed(batches or self.batches())
        done = self.run_prun(self.words(**{"from": "feed", "name": self.name, **settings}), code)
        feeder.stop()
        thread.join()
        for words in expected:
            self.assertIn(words, done.stderr)

    def test_a_feed_that_does_not_fit_names_both_sides(self):
        self.refused(3, "gives 'tokens' as int64 [batch, 8], and the plan declares int32 [batch, 8]", kind="int32")
        self.refused(3, "gives batches of 8 samples, and the plan has 16", batch=16)
        self.refused(3, f"gives 'labels' as int64 [batch, {CONTEXT}], and the plan declares int64 [batch, 4]", context=4)

    def test_a_feed_with_too_few_batches(self):
        two = [self.batch(range(8)), self.batch(range(8, 16))]
        self.refused(21, f"the feed '{self.name}' has ended after batch 2", "need batch 3", batches=two, steps=5)

    def test_a_feeder_that_fails_ends_the_job_with_its_message(self):
        def broken():
            yield self.batch(range(8))
            raise ValueError("no more disk")

        self.refused(21, "has failed before batch", "ValueError: no more disk", batches=broken(), steps=5)

    def test_a_batch_of_another_shape_fails(self):
        def shorter():
            yield self.batch(range(8))
            yield self.batch(range(4))

        self.refused(21, "was i64 [8, 8]", "drop_last=True", batches=shorter(), steps=5)

    def test_a_label_out_of_range_is_named(self):
        wrong = self.batch(range(8))
        wrong["labels"] = shaped("q", [24] * 64, 8, CONTEXT)
        self.refused(2, "the label 24 in 'labels', sample 0 of batch 0", batches=[wrong], steps=1)

    def test_check_sim_and_draw_need_no_feeder(self):
        cluster = HERE.parents[1] / "plans/clusters/dgx-a100.yaml"
        for command, *options in (("check",), ("check", "--prove"), ("sim", "--cluster", cluster), ("dump",), ("draw",)):
            words = self.words(*options, **{"from": "feed", "name": self.name})[1:]
            done = self.run_prun([self.prun_path, command, *words])
            if command == "check":
                self.assertIn("in /dev/shm (4 batches,", done.stdout)

    def test_without_a_feeder_the_job_ends_after_the_timeout(self):
        done = self.run_prun(self.words("--timeout", "1", **{"from": "feed", "name": self.name}), 21)
        self.assertIn(f"no process feeds '{self.name}'", done.stderr)

    def test_an_evaluation_needs_data_of_its_own(self):
        self.refused(3, "a feed has no end to hold out", eval="yes")

    def test_a_feeder_in_c(self):
        sdk, feeder = HERE.parent / "sdk", self.folder / "feeder"
        subprocess.run([os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-I",
                        HERE.parents[1] / "runtime/include", sdk / "feeder.c", "-o", feeder], check=True)
        with subprocess.Popen([feeder, self.name]) as feeding:
            self.addCleanup(feeding.kill)
            metrics = self.folder / "sums.jsonl"
            self.run_prun([self.prun_path, sdk / "feeder.lua", "--nproc", "2", "--metrics", metrics, "--set",
                           f"name={self.name}"])
            losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if "loss" in line]
            self.assertLess(losses[-1], losses[0] / 100)
            self.assertEqual(feeding.wait(60), 0)

    def test_refusals_of_the_feeder(self):
        for batches, words in (([], "there is no batch"), ([(1, 2)], "no names"), ([{"x": "text"}], "should be an array"),
                               ([{"x": shaped("b", [1], 1)}], "elements of the format 'b'")):
            with self.assertRaisesRegex(prun.UsageError, words):
                Feeder(batches, self.name)
        self.feed(self.batches())
        self.assertTrue(os.path.exists(path_of(self.name)))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
