#!/usr/bin/env python3
"""prun generate uses the model's own probabilities: those of a generated text equal its loss in the training program.
The cache, the chunks of a prompt and ranks that split the weights change nothing.
Usage: generate_test.py PRUN [SUBSTITUTES]    SUBSTITUTES: the folder of devices/cuda.so
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
ENVIRONMENT = dict(os.environ)
if len(sys.argv) > 2:
    ENVIRONMENT.update(PRUN_DEVICE_PATH=f"{sys.argv[2]}/devices", PRUN_SUBSTITUTE_DEVICES="2")
PLAN = "tests/generate/models.lua"
MODELS = [[], ["tied=true"], ["model=llama"], ["model=llama", "kv_heads=2", "tied=true"], ["model=moe"],
          ["model=functions"]]


def words_of(settings):
    return [word for setting in settings for word in ("--set", setting)]


def prun(*words, code=0, text=True):
    done = subprocess.run([PRUN, *(word if isinstance(word, bytes) else str(word) for word in words)], capture_output=True, text=text, timeout=100,
                          env=ENVIRONMENT)
    if done.returncode != code:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
    return done


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-generate-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    def trained(self, settings):
        """Returns a checkpoint after five steps, made once."""
        folder = self.folder / "-".join(["c", *settings])
        if not folder.exists():
            prun(PLAN, *words_of(settings), "--checkpoint", folder)
        return folder

    def made(self, settings, *options, prompt="t", tokens=32, then=()):
        words = [*words_of([*settings, *then]), "--from", self.trained(settings), "--prompt", prompt, "--tokens", tokens]
        return json.loads(prun("generate", PLAN, *words, "--json", *options).stdout)

    def assert_alike(self, one, other, places=4):
        self.assertEqual(one["ids"], other["ids"])
        for a, b in zip(one["log_probabilities"], other["log_probabilities"]):
            self.assertAlmostEqual(a, b, places)

    def test_probabilities_are_those_of_the_loss(self):
        for settings in [*MODELS, ["dtype=bf16"]]:
            with self.subTest(settings=settings):
                made = self.made(settings, "--temperature", 1, "--top-k", 0)
                text, metrics = self.folder / "text", self.folder / "metrics"
                text.write_bytes(bytes(made["prompt"] + made["ids"]))  # exactly one sample
                metrics.unlink(missing_ok=True)
                resumed = [*settings, f"data={text}", "batch=1", "steps=6"]
                prun(PLAN, *words_of(resumed), "--resume", self.trained(settings), "--new-data", "--metrics", metrics)
                loss = json.loads(metrics.read_text().splitlines()[0])["loss"]
                mean = -sum(made["log_probabilities"]) / len(made["ids"])
                self.assertAlmostEqual(mean, loss, 2 if "dtype=bf16" in settings else 5)

    def test_a_prompt_in_chunks_is_one_token_by_token(self):
        for settings in MODELS:
            settings = [*settings, "context=192"]
            with self.subTest(settings=settings):
                whole = self.made(settings, "--temperature", 0.9, "--seed", 3, tokens=190)
                text = bytes(whole["prompt"] + whole["ids"])
                for length in (2, 64, 65, 130, 150):  # a chunk has 64 tokens
                    greedy = self.made(settings, "--temperature", 0, prompt=text[:length], tokens=1)
                    again = self.made(settings, "--temperature", 0.9, "--top-k", 1, prompt=text[:length], tokens=1)
                    self.assertEqual(greedy["ids"], again["ids"])
                    if greedy["ids"] == whole["ids"][length - 1:length]:
                        self.assertAlmostEqual(greedy["log_probabilities"][0], whole["log_probabilities"][length - 1], 5)

    def test_ranks_that_split_the_weights_choose_the_same(self):
        for settings in [*MODELS, ["vocab=255"]]:  # 255: the last rank's logits are padded
            with self.subTest(settings=settings):
                prompt = "t" if "vocab=255" in settings else "the time of the"
                alone = self.made(settings, "--temperature", 0, prompt=prompt, tokens=16)
                for then in (["tp=2"], ["tp=2", "sequence=true"]):
                    self.assert_alike(alone, self.made(settings, "--temperature", 0, "--nproc", 2, prompt=prompt, tokens=16, then=then))
        self.assert_alike(self.made([]), self.made([], "--nproc", 2, then=["tp=2"]))

    def test_a_device_that_is_enqueued_on_chooses_the_same(self):
        prompt = "the time of the sea is "
        for settings in ([], ["model=llama", "kv_heads=2"]):
            here = self.made(settings, "--temperature", 0, prompt=prompt, tokens=8)
            self.assert_alike(here, self.made(settings, "--temperature", 0, "--device", "cpu-queue", prompt=prompt, tokens=8))
            if len(sys.argv) > 2:
                self.assert_alike(here, self.made(settings, "--temperature", 0, "--device", "cuda", prompt=prompt, tokens=8))

    def test_padded_columns_are_never_chosen(self):
        """255 and 192 columns are padded to 512, at temperatures at which all columns are equally likely."""
        for settings in (["vocab=255", "tied=true"], ["vocab=192"]):
            with self.subTest(settings=settings):
                words = ["--temperature", 99, "--top-k", 0]
                alone = self.made(settings, *words, prompt="the", tokens=29)
                self.assert_alike(alone, self.made(settings, *words, "--pad-vocabulary", 512, prompt="the", tokens=29))
                for then in (["tp=2"], ["tp=2", "sequence=true"]):
                    padded = self.made(settings, *words, "--nproc", 2, "--pad-vocabulary", 256, prompt="the", tokens=29, then=then)
                    self.assert_alike(alone, padded)

    def test_a_seed_gives_the_same_text(self):
        one = self.made([], "--seed", 1)
        self.assertEqual(one, self.made([], "--seed", 1))
        self.assertNotEqual(one["ids"], self.made([], "--seed", 2)["ids"])
        self.assertEqual(self.made([], "--top-k", 1), self.made([], "--temperature", 0))
        self.assertEqual(self.made([], "--top-p", 0.001)["ids"], self.made([], "--temperature", 0)["ids"])

    def test_a_plan_runs_without_its_data_and_strategies(self):
        """A plan for any mesh generates with its model alone."""
        folder = self.folder / "sharded"
        sizes = ["layers=2", "width=32", "heads=4", "context=32", "batch=8", "steps=2"]
        prun("plans/zero3.lua", "--nproc", 2, *words_of(sizes), "--checkpoint", folder)
        texts = set()
        for plan, ranks in (("single", 1), ("zero3", 1), ("1f1b", 1), ("3d", 1), ("megatron", 2), ("ring_attention", 1)):
            words = [*words_of([*sizes, "data=/nowhere"]), "--checkpoint", folder, "--prompt", "a", "--tokens", 20]
            texts.add(prun("generate", f"plans/{plan}.lua", "--nproc", ranks, *words, text=False).stdout)
        self.assertEqual(len(texts), 1)

    def test_tokenizers_give_the_ids_of_hugging_faces(self):
        folder = pathlib.Path(__file__).resolve().parent / "tokenizers"
        for name, cases in json.loads((folder / "cases.json").read_text()).items():
            settings = ["vocab=420", "steps=1", "context=64"]
            for text, ids in cases.items():
                with self.subTest(tokenizer=name, text=text):
                    made = self.made(settings, "--tokenizer", folder / f"{name}.json", prompt=text, tokens=1)
                    self.assertEqual(made["prompt"], ids)

    def test_an_end_of_text_ends_it(self):
        """One of 420 equally likely tokens is the end of text."""
        folder = pathlib.Path(__file__).resolve().parent / "tokenizers"
        made = self.made(["vocab=420", "steps=1", "context=1024"], "--tokenizer", folder / "gpt2.json", "--temperature", 9, "--top-k", 0,
                         prompt="the", tokens=1000)
        self.assertEqual([i for i, id in enumerate(made["ids"]) if id == 0], [len(made["ids"]) - 1])
        self.assertNotIn("endoftext", made["text"])

    def test_a_folder_of_weights_needs_no_plan(self):
        for settings in MODELS[:-1]:
            with self.subTest(settings=settings):
                words = ["--prompt", "the", "--tokens", 20, "--temperature", 0, "--json"]
                planned = self.made(settings, "--temperature", 0, prompt="the", tokens=20)
                checkpoint = self.trained(settings)
                self.assert_alike(planned, json.loads(prun("generate", checkpoint, *words).stdout))
                self.assert_alike(planned, json.loads(prun("generate", checkpoint, *words, "--nproc", 2).stdout))
                if "model=moe" in settings:
                    continue
                folder = self.folder / "-".join(["hf", *settings])
                prun("ckpt", "export", checkpoint, "--format", "hf", "--out", folder)
                self.assert_alike(planned, json.loads(prun("generate", folder, *words).stdout))
                beside = ["--checkpoint", folder, *words_of(settings)]
                self.assert_alike(planned, json.loads(prun("generate", PLAN, *beside, *words).stdout))

    def test_a_folder_ends_texts_where_its_configuration_says(self):
        checkpoint, folder = self.trained([]), self.folder / "ends"
        words = ["--prompt", "the", "--tokens", 20, "--temperature", 0, "--json"]
        prun("ckpt", "export", checkpoint, "--format", "hf", "--out", folder)
        third = json.loads(prun("generate", folder, *words).stdout)["ids"][2]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [third, 255]}))
        self.assertEqual(json.loads(prun("generate", folder, *words).stdout)["ids"][-1], third)

    def test_text_streams_as_bytes(self):
        words = ["--checkpoint", self.trained([]), "--prompt", "the", "--tokens", 8]
        out = prun("generate", PLAN, *words, text=False).stdout
        self.assertEqual(out, bytes([*self.made([], prompt="the", tokens=8)["prompt"], *self.made([], prompt="the", tokens=8)["ids"], 10]))

    def test_what_does_not_fit_is_said_with_both_sides(self):
        checkpoint = self.trained([])

        def refused(code, *words, settings=()):
            done = prun("generate", PLAN, *words_of(settings), "--checkpoint", checkpoint, *words, code=code)
            self.assertEqual(done.stdout, "")
            return done.stderr

        text = refused(16, "--prompt", "a", "--tokens", 4, settings=["context=64"])
        self.assertIn("embed.position.weight is [32, 32] there and [64, 32] here", text)
        text = refused(16, "--prompt", "a", "--tokens", 4, settings=["model=moe"])
        self.assertIn("do not fit this plan: there is no block0.moe.", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
