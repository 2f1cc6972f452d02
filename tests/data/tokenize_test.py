#!/usr/bin/env python3
"""prun.data.tokens reads the files of tools/tokenize. Usage: tokenize_test.py PRUN. Uses the running Python's packages
tokenizers and pyarrow if they exist, otherwise the substitute in this folder.
"""
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent
TOKENIZE = HERE.parent.parent / "tools" / "tokenize"
REAL = importlib.util.find_spec("tokenizers") is not None
WORDS = "the a plan rank moves bytes where and when never hangs".split()
END = "<|endoftext|>"


def tokens_of(path):
    data = path.read_bytes()
    magic, version, count = struct.unpack_from("<3i", data)
    kind, width = {(20240520, 1): ("H", 2), (20240801, 7): ("I", 4)}[magic, version]
    assert len(data) == 1024 + width * count, path
    return list(struct.unpack_from(f"<{count}{kind}", data, 1024))


class Tokenize(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-tokenize-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.vocab = {word: i for i, word in enumerate([END, *WORDS])}
        self.write_tokenizer(self.vocab)
        self.documents = [" ".join(WORDS[i % 11] for i in range(n, n + 5 + n % 7)) for n in range(200)]
        (self.folder / "text.txt").write_text("\n".join(self.documents) + "\n")
        (self.folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in self.documents))

    def write_tokenizer(self, vocab, unknown=END):
        words = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
                 "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [],
                 "model": {"type": "WordLevel", "vocab": vocab, "unk_token": unknown}}
        (self.folder / "tokenizer.json").write_text(json.dumps(words))

    def tokenize(self, *words, expect=0):
        environment = {**os.environ, **({} if REAL else {"PYTHONPATH": str(HERE / "substitute")})}
        done = subprocess.run([sys.executable, TOKENIZE, "--tokenizer", "tokenizer.json", *words], cwd=self.folder, capture_output=True,
                              text=True, env=environment, timeout=100)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def expected(self, documents):
        return [token for text in documents for token in [*(self.vocab[word] for word in text.split()), 0]]

    def test_documents_shards_and_validation(self):
        said = self.tokenize("--out", "data", "rows.jsonl", "--validation", "0.1", "--shard-tokens", "500")
        self.assertIn("200 documents, ", said)
        self.assertIn("uint16, vocab = 12, document end 0", said)
        self.assertEqual((self.folder / "data/tokenizer.json").read_text(), (self.folder / "tokenizer.json").read_text())
        found = {part: [token for path in sorted((self.folder / "data").glob(f"{part}_*.bin")) for token in tokens_of(path)]
                 for part in ("train", "validation")}
        for part, held in (("train", False), ("validation", True)):
            wanted = [text for i, text in enumerate(self.documents) if (i % 10 == 9) == held]
            self.assertEqual(found[part], self.expected(wanted), part)
        plan = self.folder / "plan.lua"
        plan.write_text(f"""local prun = require "prun"
            return prun.plan {{ mesh = prun.mesh {{ dp = prun.world }},
              model = prun.models.gpt {{ vocab = 12, layers = 1, width = 16, heads = 2, context = 16 }},
              {said.splitlines()[1].strip().replace("32", "8")},
              eval = prun.eval {{ every = 5, data = prun.data.tokens {{ path = "data/validation_*.bin", batch = 8 }} }},
              optimizer = prun.adamw {{ lr = 1e-2 }}, steps = 10 }}""")
        done = subprocess.run([PRUN, plan], cwd=self.folder, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_lines_are_documents_or_the_file_is_one(self):
        self.tokenize("--out", "lines", "text.txt", "--lines")
        self.assertEqual(tokens_of(self.folder / "lines/train_000000.bin"), self.expected(self.documents))
        self.tokenize("--out", "whole", "text.txt", "--document-end", "none")
        self.assertEqual(tokens_of(self.folder / "whole/train_000000.bin"), [t for t in self.expected(self.documents) if t != 0])

    def test_large_vocabularies_take_uint32(self):
        self.write_tokenizer({**self.vocab, **{f"word{i}": i for i in range(12, 70000)}})
        self.assertIn("uint32, vocab = 70000", self.tokenize("--out", "data", "text.txt"))
        self.assertEqual(len(tokens_of(self.folder / "data/train_000000.bin")), len(self.expected(self.documents)) - 199)

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"), "no pyarrow")
    def test_parquet(self):
        import pyarrow
        from pyarrow import parquet
        parquet.write_table(pyarrow.table({"content": self.documents}), self.folder / "rows.parquet")
        self.tokenize("--out", "data", "rows.parquet", "--field", "content")
        self.assertEqual(tokens_of(self.folder / "data/train_000000.bin"), self.expected(self.documents))
        self.assertIn("no column 'text' (--field); there is content", self.tokenize("--out", "other", "rows.parquet", expect=1))

    def test_what_is_wrong_is_said(self):
        self.assertIn("no file 'none.txt'", self.tokenize("--out", "data", "none.txt", expect=1))
        self.assertIn("rows.jsonl:1: no text 'body' (--field); there is text",
                      self.tokenize("--out", "data", "rows.jsonl", "--field", "body", expect=1))
        self.assertIn("has no token '</end>'", self.tokenize("--out", "data", "text.txt", "--document-end", "</end>", expect=1))
        self.assertIn("1 document: a share of 0.1 is none of them",
                      self.tokenize("--out", "data", "text.txt", "--validation", "0.1", expect=1))
        self.tokenize("--out", "data", "text.txt")
        self.assertIn("data has token files already, such as train_000000.bin", self.tokenize("--out", "data", "text.txt", expect=1))
        self.write_tokenizer({word: i for i, word in enumerate(["<unknown>", *WORDS])}, unknown="<unknown>")
        self.assertIn("or say --document-end none", self.tokenize("--out", "new", "text.txt", expect=1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
