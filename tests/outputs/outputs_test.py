#!/usr/bin/env python3
"""prun eval, prun predict, the best checkpoint and early ends. Usage: outputs_test.py PRUN"""
import json
import math
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import runs  # noqa: E402
from runs import MESHES, PLAN, PRUN, array  # noqa: E402


class Outputs(runs.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained, _ = cls.train("trained", steps=4, keep=9)

    def names(self, folder):
        return sorted(path.name for path in folder.iterdir() if path.name.startswith(("step_", "best")))

    def test_eval_is_the_evaluation_of_the_run(self):
        folder, evaluated = self.train("run", steps=4, keep=9)
        for step in (2, 4):
            result = self.eval(folder / f"step_{step:08}")
            self.assertEqual(result["eval_loss"], evaluated[step])
        self.assertEqual(self.eval(folder)["samples"], 24)
        self.assertIn("loss       ", self.prun("eval", PLAN, "--from", folder).stdout)
        whole = self.eval(folder, whole="true")
        self.assertNotIn(whole["samples"] % 8, (0,))
        self.assertEqual(self.eval(folder, optimizer="sgd")["eval_loss"], evaluated[4])  # reads no optimizer state

    def test_eval_on_any_mesh(self):
        one = self.eval(self.trained)["eval_loss"]
        for name, (ranks, settings) in MESHES.items():
            with self.subTest(name):
                found = self.eval(self.trained, "--nproc", ranks, **settings)["eval_loss"]
                self.assertAlmostEqual(found, one, delta=1e-12)

    def test_first(self):
        _, evaluated = self.train("first", "--nproc", "2", steps=4, learns=0, first="true")
        self.assertEqual(sorted(evaluated), [0, 2, 4])
        self.assertEqual(len(set(evaluated.values())), 1)  # nothing is learnt

    def test_first_is_in_events_and_in_the_summary(self):
        _, evaluated = self.train("seen", "--runs", "seen-runs", steps=4, first="true")
        self.assertEqual(len(set(evaluated.values())), 3)
        (events,) = (self.here / "seen-runs").glob("*/events.jsonl")
        rows = [json.loads(line) for line in events.read_text().splitlines()]
        found = {row["step"]: row["loss"] for row in rows if row["event"] == "evaluation"}
        self.assertEqual(found, evaluated)
        self.assertIn(f"step 0  evaluated {evaluated[0]:.4f}\n", self.said)
        self.assertIn(f"evaluated  {evaluated[0]:.4f} -> {evaluated[4]:.4f}, 3 times, ", self.said)

    def whole_loss(self):
        return self.eval(self.trained, whole="true")["eval_loss"]

    def cross_entropy(self, logits, text, samples):
        """Returns the mean loss of samples, whose targets are the file's next bytes."""
        losses = []
        for position in (sample * 12 + i for sample in samples for i in range(12)):
            row = logits[position * 256:(position + 1) * 256]
            losses.append(math.log(sum(map(math.exp, row))) - row[text[position + 1]])
        return sum(losses) / len(losses)

    def test_predict(self):
        out = self.here / "one.npy"
        self.prun("predict", PLAN, "--from", self.trained, "--out", out)
        shape, logits = array(out)
        self.assertEqual(shape, (91, 12, 256))  # (1100 - 1) // 12 samples, the last of which evaluations read
        text = (self.here / "text.txt").read_bytes()
        self.assertAlmostEqual(self.cross_entropy(logits, text, range(91 - 4, 91)), self.whole_loss(), delta=0.2)
        for name, (ranks, settings) in MESHES.items():
            with self.subTest(name):
                other = self.here / f"{name}.npy"
                self.prun("predict", PLAN, "--from", self.trained, "--out", other, "--nproc", ranks, **settings)
                self.assertEqual(array(other)[0], shape)
                if "tp" not in settings:
                    self.assertEqual(other.read_bytes(), out.read_bytes())
                self.assertLess(max(abs(a - b) for a, b in zip(array(other)[1], logits)), 1e-12)

    def test_predict_of_experts(self):
        """Ranks add up the loads of experts; a prediction has a node without results among theirs."""
        folder, _ = self.train("experts", steps=2, experts="true")
        whole = []
        for ranks, settings in ((1, {}), (2, {}), (2, {"ep": 2}), (2, {"pp": 2})):
            out = self.here / "experts.npy"
            self.prun("predict", PLAN, "--from", folder, "--out", out, "--nproc", ranks, experts="true", **settings)
            whole = whole or array(out)[1]
            self.assertLess(max(abs(a - b) for a, b in zip(array(out)[1], whole, strict=True)), 1e-12)

    def test_predict_a_named_output(self):
        folder, _ = self.train("own", steps=2, own="true")
        out = self.here / "few.npy"
        self.prun("predict", PLAN, "--from", folder, "--out", out, "--output", "few", own="true")
        self.assertEqual(array(out)[0], (91, 12, 3))
        done = self.prun("predict", PLAN, "--from", folder, "--out", out, "--output", "all", "--json", own="true")
        self.assertEqual(json.loads(done.stdout)["shape"], [91, 12, 256])

    def test_the_best_checkpoint_is_kept(self):
        folder, evaluated = self.train("best", steps=10)
        self.assertEqual(min(evaluated, key=evaluated.get), 4)
        self.assertEqual(self.names(folder), ["best", "step_00000004", "step_00000010"])
        self.assertEqual(self.eval(folder / "best")["eval_loss"], evaluated[4])
        subprocess.run([PRUN, "ckpt", "verify", folder / "best"], check=True, capture_output=True)

    def test_a_proof_and_a_generation_have_no_evaluations(self):
        self.prun("check", PLAN, "--nproc", 2, "--prove", dtype="f32")
        folder, _ = self.train("f32", steps=2, dtype="f32")
        words = ["--from", folder / "best", "--prompt", "a", "--tokens", 2, "--json"]
        self.assertEqual(len(json.loads(self.prun("generate", PLAN, *words, dtype="f32").stdout)["ids"]), 2)

    def test_the_best_survives_a_resume(self):
        self.train("again", steps=6)
        folder, _ = self.train("again", "--resume", "auto", steps=10)
        start = "step_00000006"  # --checkpoint-keep retains it
        self.assertEqual(self.names(folder), ["best", "step_00000004", start, "step_00000010"])
        self.assertEqual((folder / "best").readlink().name, "step_00000004")
        folder, _ = self.train("again", "--resume", "again/best", steps=10)
        self.assertIn("step_00000004", self.names(folder))

    def test_patience(self):
        for ranks, settings in ((1, {}), (2, {}), (2, {"pp": 2, "micro": 2})):
            with self.subTest(ranks=ranks, **settings):
                name = f"early{ranks}{len(settings)}"
                folder, evaluated = self.train(name, "--nproc", ranks, steps=40, patience=3, **settings)
                self.assertEqual(sorted(evaluated), [2, 4, 6, 8, 10])
                self.assertIn("ends after step 10, because eval_loss has not improved in 3 evaluations", self.said)
                self.assertEqual(self.names(folder), ["best", "step_00000004", "step_00000010"])

    def test_patience_survives_a_resume(self):
        self.train("patient", steps=6, patience=3)
        _, evaluated = self.train("patient", "--resume", "auto", steps=40, patience=3)
        self.assertEqual(max(evaluated), 10)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
