#!/usr/bin/env python3
"""plugins/ofi as its users build it: from an installed prun alone, then the conformance suite, then zero3.

Usage: ofi_test.py BUILD [--all]: items of the suite that take seconds, or all. Standard library only.
"""
import json
import pathlib
import sys
import tempfile
import unittest

from installed_test import ROOT, run

BUILD, ALL = "", False
SHORT = ["messages", "groups", "threads", "guards", "environment"]


class Ofi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="prun_ofi_")
        cls.addClassCleanup(folder.cleanup)
        cls.here = pathlib.Path(folder.name)
        cls.prun = cls.here / "prefix/bin/prun"
        run("cmake", "--install", BUILD, "--prefix", cls.here / "prefix")
        run("cmake", "-S", ROOT / "plugins/ofi", "-B", cls.here / "build", "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={cls.here / 'prefix'}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        run("cmake", "--build", cls.here / "build")
        run("cmake", "--install", cls.here / "build", "--prefix", cls.here / "prefix")

    def test_conform(self):
        lines = run(self.prun, "conform", "ofi", *([] if ALL else [*SHORT, "queue"])).splitlines()
        words = {row[1]: row[2] for row in (line.split(maxsplit=2) for line in lines) if row and row[0].isdigit()}
        self.assertEqual(words.pop("queue"), "not claimed")
        self.assertEqual(len(words), 11 if ALL else len(SHORT), lines)
        self.assertTrue(all(word.startswith("ok") for word in words.values()), lines)

    def losses(self, transport, ranks):
        metrics = self.here / f"{transport}{ranks}.jsonl"
        run(self.prun, "plans/zero3.lua", "--nproc", ranks, "--transport", transport, "--set", "steps=4", "--set", "layers=1",
            "--metrics", metrics, cwd=self.here)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [row["loss"] for row in rows if "loss" in row]

    def test_zero3(self):
        for ranks in (2, 4) if ALL else (2,):
            ours, theirs = self.losses("shm", ranks), self.losses("ofi", ranks)
            self.assertEqual(len(theirs), 4)
            for a, b in zip(ours, theirs):
                self.assertAlmostEqual(a, b, places=4)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    ALL = "--all" in sys.argv and not sys.argv.remove("--all")
    unittest.main(verbosity=2)
