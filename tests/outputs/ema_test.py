#!/usr/bin/env python3
"""Running averages of weights (ema of an optimizer): in training, evaluations, predictions and exports, on any mesh.
tests/python/groups_test.py compares them with PyTorch's. Usage: ema_test.py PRUN
"""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import runs  # noqa: E402

MESHES = {**runs.MESHES, "offload": (2, {"zero3": "true", "offload": "true"})}


class Ema(runs.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder, cls.evaluated = cls.train("ema", steps=6, keep=9, ema=0.7, of_ema="true", learns=9)

    def test_training_is_the_same_and_evaluations_are_not(self):
        _, plain = self.train("plain", steps=6, learns=9)
        with_ema, without = (self.losses(name) for name in ("ema", "plain"))
        self.assertEqual(with_ema, without)
        for step, loss in self.evaluated.items():
            self.assertGreater(loss, plain[step])  # the average lags behind

    def test_every_mesh_is_one_rank(self):
        for name, (ranks, settings) in MESHES.items():
            with self.subTest(name):
                folder, evaluated = self.train(f"ema_{name}", "--nproc", ranks, steps=6, keep=9, ema=0.7, of_ema="true",
                                               learns=9, **settings)
                self.assertEqual(sorted(evaluated), sorted(self.evaluated))
                for step, loss in self.evaluated.items():
                    self.assertAlmostEqual(evaluated[step], loss, delta=1e-12)
                for found, expected in zip(self.losses(f"ema_{name}"), self.losses("ema"), strict=True):
                    self.assertAlmostEqual(found, expected, delta=1e-12)
                self.assertAlmostEqual(self.eval(folder, "--ema")["eval_loss"], self.evaluated[6], delta=1e-12)

    def test_every_mesh_is_proven(self):
        for dtype in ("f32", "bf16"):
            for name, (ranks, settings) in MESHES.items():
                with self.subTest(name, dtype=dtype):
                    said = self.prun("check", runs.PLAN, "--nproc", ranks, "--prove", dtype=dtype, ema=0.9, of_ema="true",
                                     **settings).stdout
                    self.assertIn("equals one rank", said)

    def test_eval_reads_what_the_run_evaluated(self):
        for step in (2, 6):
            folder = self.folder / f"step_{step:08}"
            self.assertEqual(self.eval(folder, ema=0.7, of_ema="true")["eval_loss"], self.evaluated[step])
            self.assertEqual(self.eval(folder, "--ema")["eval_loss"], self.evaluated[step])
            self.assertGreater(self.evaluated[step], self.eval(folder)["eval_loss"])

    def test_averages_of_bf16_weights(self):  # are cast for each evaluation
        for settings in ({}, {"zero3": "true"}, {"zero3": "true", "offload": "true"}):
            name = "low" + "".join(settings)
            given = {"dtype": "bf16", "steps": 4, "learns": 9, **settings}
            folder, evaluated = self.train(name, "--nproc", 2, ema=0.7, of_ema="true", **given)
            self.train(f"{name}_plain", "--nproc", 2, **given)
            self.assertEqual(self.losses(name), self.losses(f"{name}_plain"))
            found = self.eval(folder, "--ema", "--nproc", 2, **settings, dtype="bf16")["eval_loss"]
            self.assertAlmostEqual(found, evaluated[4], delta=1e-6)

    def test_a_resumed_run_goes_on_with_its_averages(self):
        settings = {"ema": 0.7, "of_ema": "true", "learns": 9, "keep": 9}
        self.train("half", steps=4, **settings)
        _, evaluated = self.train("half", "--resume", "auto", "--nproc", 2, steps=6, zero3="true", **settings)
        self.assertAlmostEqual(evaluated[6], self.evaluated[6], delta=1e-12)

    def test_predictions_and_exports_have_the_averages(self):
        words = [runs.PRUN, "ckpt", "export", self.folder, "--ema", "--out", self.here / "exported"]
        subprocess.run(words, check=True, capture_output=True)
        outs = {}
        for name, words in {"plain": ["--from", self.folder], "ema": ["--from", self.folder, "--ema"],
                            "exported": ["--from", "exported"]}.items():
            outs[name] = self.here / f"{name}.npy"
            self.prun("predict", runs.PLAN, *words, "--out", outs[name])
        contents = {name: path.read_bytes() for name, path in outs.items()}
        self.assertEqual(contents["ema"], contents["exported"])
        self.assertNotEqual(contents["ema"], contents["plain"])

    def test_weights_without_averages_are_refused(self):
        folder, _ = self.train("none", steps=2, learns=9)
        (self.here / "files").mkdir()
        for path in ("w.safetensors", "files/w.safetensors"):
            (self.here / path).write_bytes((2).to_bytes(8, "little") + b"{}")
        for weights, problem in ((folder, "it is a checkpoint of an optimizer without ema; leave --ema out, or train"),
                                 (self.here / "w.safetensors", "it is no checkpoint of prun; leave --ema out"),
                                 (self.here / "files", "it is no checkpoint of prun; leave --ema out")):
            said = self.prun("eval", runs.PLAN, "--from", weights, "--ema", code=16).stderr
            self.assertIn("has no running averages of weights: " + problem, said)
        words = [runs.PRUN, "ckpt", "export", folder, "--ema", "--out", self.here / "exported_none"]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        self.assertEqual((done.returncode, "without ema" in done.stderr), (16, True))
        self.assertFalse((self.here / "exported_none").exists())

    def test_a_generation_reads_them(self):
        folder, _ = self.train("f32", steps=4, dtype="f32", ema=0.99, learns=9)
        words = ["generate", runs.PLAN, "--from", folder, "--prompt", "a", "--tokens", 1, "--temperature", 0, "--json"]
        plain, averages = (json.loads(self.prun(*words, *option, dtype="f32").stdout)["log_probabilities"]
                           for option in ([], ["--ema"]))
        self.assertNotEqual(plain, averages)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
