#!/usr/bin/env python3
"""Compares prun's tokenizers with PyPI's on random text, for each type in tokenizers/.

Usage: tokenizers_test.py PRUN VENV. VENV: see transformers_test.py.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import packages  # noqa: E402

PRUN = sys.argv[1]
packages.run_inside(__file__, sys.argv[2])
from tokenizers import Tokenizer  # noqa: E402

PLAN = """local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.gpt { vocab = 512, layers = 1, width = 4, heads = 1, context = 8192 },
  data = prun.data.bytes { path = "text", batch = 1 }, optimizer = prun.sgd { lr = 0 }, steps = 1,
}
"""
PIECES = ["the", " ", "  ", "sea", "The", "\n", "\t", "n't", "'s", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|begin_of_text|>", "\u2581",
          "é", "ß", "東", "🙂", "\u0301", "１", "٣", "²", "\u00a0", "\u2003", "<0x0A>", "<0xE2>", "_", "12345", "x", "Q", "~", "\x7f", ",", ".", "\r\n"]
TEXTS, FORMS = 40, sorted(path for path in (HERE / "tokenizers").glob("*.json") if path.name != "cases.json")


class Tokenizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="prun-tokenizers-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "plan.lua").write_text(PLAN)
        (cls.folder / "text").write_bytes(bytes(10000))
        cls.prun("plan.lua", "--checkpoint", "c")

    @classmethod
    def prun(cls, *words):
        done = subprocess.run([PRUN, *map(str, words)], cwd=cls.folder, capture_output=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr.decode()}")
        return done.stdout

    def ids(self, form, text):
        return json.loads(self.prun("generate", "c", "--tokenizer", form, "--prompt", text, "--tokens", 1, "--json"))["prompt"]

    def test_random_text(self):
        for form in FORMS:
            theirs, chance = Tokenizer.from_file(str(form)), random.Random(form.stem)
            for _ in range(TEXTS):
                text = "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 30)))
                with self.subTest(form=form.stem, text=text):
                    self.assertEqual(self.ids(form, text), theirs.encode(text).ids)

    def test_a_long_text_that_nothing_splits(self):
        """Each merge examines only its neighbours: for 19,200 characters in one word, all pairs would take many
        seconds.
        """
        form, text = HERE / "tokenizers/mistral.json", "the time of the sea and " * 800
        before = time.monotonic()
        self.assertEqual(self.ids(form, text), Tokenizer.from_file(str(form)).encode(text).ids)
        self.assertLess(time.monotonic() - before, 20)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
