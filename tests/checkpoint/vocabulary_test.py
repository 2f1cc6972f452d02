#!/usr/bin/env python3
"""Padding the vocabulary affects only the layout: losses equal those without it, and checkpoints, exports and parameter
counts do not contain it, for every strategy and device. Usage: vocabulary_test.py PRUN [SUBSTITUTES]
"""
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import program_text  # noqa: E402

KINDS, MODELS = "tests/checkpoint/kinds.lua", "tests/generate/models.lua"
PADDED = ("--pad-vocabulary", 96)  # 256 columns become 288, and on each of two ranks 192
ENVIRONMENT = dict(os.environ)
if len(sys.argv) > 2:
    ENVIRONMENT.update(PRUN_DEVICE_PATH=f"{sys.argv[2]}/devices", PRUN_SUBSTITUTE_MEMORY_MIB="512")
STATES = [dict(strategy="none"), dict(strategy="none", tied=True, optimizer="lion"), dict(strategy="ddp", dtype="bf16", tied=True),
          dict(strategy="zero3", tied=True), dict(strategy="zero3", dtype="bf16", offload="optimizer"), dict(strategy="tp", tied=True),
          dict(strategy="tp", optimizer="sgd", model="llama"), dict(strategy="pp", tied=True), dict(strategy="pp", optimizer="lion"),
          dict(strategy="drift"), dict(strategy="none", optimizer="adafactor"), dict(strategy="tp", tied=True, optimizer="adafactor"),
          dict(strategy="zero3", dtype="bf16", optimizer="adafactor")]


def prun(*words, **settings):
    return program_text.run(PRUN, *words, check=True, env=ENVIRONMENT, **settings).stdout


def ranks_of(settings):
    return 1 if settings.get("strategy") == "none" else 2


class Vocabulary(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-vocabulary-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.count = 0

    def trained(self, plan, ranks, *options, **settings):
        """Returns the final checkpoint of a run, and its losses."""
        self.count += 1
        checkpoint, metrics = self.folder / f"c{self.count}", self.folder / f"m{self.count}"
        prun(plan, "--nproc", ranks, *options, "--checkpoint", checkpoint, "--metrics", metrics, **settings)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        return checkpoint, [row["loss"] for row in rows if "loss" in row]

    def assert_same_state(self, one, other):
        self.assertEqual(json.loads(prun("ckpt", "diff", one, other, "--json")), {"differ": {}})

    def assert_close(self, losses, expected, relative):
        self.assertEqual(len(losses), len(expected))
        for one, other in zip(losses, expected):
            self.assertAlmostEqual(one, other, delta=relative * abs(other))

    def test_losses_and_checkpoints_are_those_of_the_vocabulary(self):
        for settings in STATES:
            with self.subTest(**settings):
                ranks = ranks_of(settings)
                plain, expected = self.trained(KINDS, ranks, steps=3, **settings)
                padded, losses = self.trained(KINDS, ranks, *PADDED, steps=3, **settings)
                self.assert_close(losses, expected, 2e-2 if settings.get("dtype") == "bf16" else 1e-5)
                shown, wanted = ({name: one["shape"] for name, one in json.loads(prun("ckpt", "show", folder, "--json"))["tensors"].items()}
                                 for folder in (padded, plain))
                self.assertEqual(shown, wanted)
                for words in ((), PADDED):  # read with and without padding, then written again
                    copy, _ = self.trained(KINDS, ranks, *words, "--resume", padded, steps=3, **settings)
                    self.assert_same_state(padded, copy)

    def test_any_strategy_reads_what_another_has_padded(self):
        states = [settings for settings in STATES if settings.get("tied") and settings.get("optimizer") is None]
        for before, after in zip(states, states[1:] + states[:1]):
            with self.subTest(before=before, after=after):
                padded, _ = self.trained(KINDS, ranks_of(before), *PADDED, **before)
                copy, _ = self.trained(KINDS, ranks_of(after), "--pad-vocabulary", 7, "--resume", padded, **after)
                self.assert_same_state(padded, copy)

    def test_memory_counts_the_padding_and_parameters_do_not(self):
        def check(*options):
            return json.loads(prun("check", KINDS, "--json", *options, tied=True, strategy="none"))
        plain, padded = check(), check(*PADDED)
        self.assertEqual(padded["parameters"], plain["parameters"])
        roles, wanted = padded["classes"][0]["roles"], plain["classes"][0]["roles"]
        self.assertEqual(roles["param"] - wanted["param"], 32 * 32 * 4)  # 32 f32 rows of width 32
        self.assertEqual(roles["optimizer"] - wanted["optimizer"], 2 * 32 * 32 * 4)

    def test_exports_have_the_vocabulary(self):
        padded, _ = self.trained(KINDS, 2, *PADDED, strategy="zero3", tied=True)
        out = self.folder / "hf"
        prun("ckpt", "export", padded, "--format", "hf", "--out", out)
        self.assertEqual(json.loads((out / "config.json").read_text())["vocab_size"], 256)
        data = (out / "model.safetensors").read_bytes()
        header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
        tables = [entry["shape"] for name, entry in header.items() if name.endswith("wte.weight")]
        self.assertEqual(tables, [[256, 32]])

    @unittest.skipUnless(len(sys.argv) > 2, "there is no cuda device here")
    def test_a_gpu_pads_by_itself(self):
        odd = dict(vocab=255, tied=True)
        dumped = prun("dump", MODELS, "--device", "cuda", "--after", "pad_vocabulary", **odd)
        self.assertIn("token.weight:f32[256,32]", dumped)
        self.assertIn("padded from [255, 32]", dumped)
        on_cpu, expected = self.trained(MODELS, 1, **odd)
        on_gpu, losses = self.trained(MODELS, 1, "--device", "cuda", **odd)
        self.assert_close(losses, expected, 2e-4)
        self.assert_close(self.trained(MODELS, 2, "--device", "cuda", "--transport", "shm", **odd)[1], expected, 2e-4)
        self.assert_close(self.trained(MODELS, 2, "--device", "cuda", "--transport", "shm", tp=2, **odd)[1], expected, 2e-4)
        back, _ = self.trained(MODELS, 1, "--resume", on_gpu, **odd)
        self.assert_same_state(on_gpu, back)
        there, _ = self.trained(MODELS, 1, "--device", "cuda", "--resume", on_cpu, **odd)
        self.assert_same_state(on_cpu, there)
        further, further_on_cpu = (self.trained(MODELS, 1, "--device", device, "--resume", on_cpu, steps=8, **odd)[1] for device in ("cuda", "cpu"))
        self.assert_close(further, further_on_cpu, 2e-4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
