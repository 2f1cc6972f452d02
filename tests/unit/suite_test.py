#!/usr/bin/env python3
"""tools/bench/suite.py: a tiny selection of its jobs for real, what it goes on from, and the table. Times nothing."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "tools/bench"
sys.path.insert(0, str(BENCH))
import gpt2_cpu  # noqa: E402
import kernels  # noqa: E402
import rows  # noqa: E402
import suite_table  # noqa: E402

MACHINE = {"cpu": "Processor", "isa": "avx2", "cores": 2, "caches": "L2 512 KiB", "memory_gib": 8.0, "kernel": "6", "day": "2026-11-23", "commit": "c",
           "rounds": 3}


def entry(part, *found, error=None, job="a job"):
    return {"job": job, "part": part, "rows": list(found), "error": error, "machine": MACHINE}


def cells_of(text, what):
    line = next(line for line in text.splitlines() if line.startswith(f"| {what} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


class Suite(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def suite(self, *words):
        words = [BENCH / "suite.py", "--prun", PRUN, "--state", self.folder / "jobs.jsonl", "--output", self.folder / "table.md", *words]
        return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=250)

    def test_a_selection_is_run_and_gone_on_from(self):
        done = self.suite("--only", "scale idle")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1/1 scale idle", done.stderr)
        cells = cells_of((self.folder / "table.md").read_text(), "private memory of an idle rank, 8 ranks")
        self.assertEqual(cells[4:6], ["≤ 12 MiB", "reached"])
        again = self.suite("--only", "scale idle")
        self.assertEqual((again.returncode, again.stderr), (0, ""))
        self.assertEqual(len((self.folder / "jobs.jsonl").read_text().splitlines()), 1)

    def test_what_cannot_run_is_said_and_tried_again(self):
        for _ in range(2):
            done = self.suite("--only", "step mlp-2")
            self.assertEqual(done.returncode, 2)
            self.assertIn("1/1 step mlp-2, 0 s: no PyTorch: --torch PYTHON", done.stderr)
        self.assertIn("| step mlp-2 | did not run: no PyTorch: --torch PYTHON |", (self.folder / "table.md").read_text())

    def test_a_program_that_fails_is_a_row(self):
        out = self.folder / "rows.jsonl"
        words = [BENCH / "scale.py", "many", "--prun", "/bin/false", "--json", out]
        self.assertEqual(subprocess.run([sys.executable, *map(str, words)], capture_output=True).returncode, 1)
        self.assertEqual(json.loads(out.read_text())["error"], "exit 1: without a word")

    def test_words_that_it_does_not_know(self):
        done = self.suite("--parts", "steps,scael")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--parts: there is no scael; there are limits, products,", done.stderr)


class Table(unittest.TestCase):
    def test_bars_and_limits(self):
        limit = rows.alone("f32 peak", "GFLOP/s", 200.0)
        step = rows.compared("gpt-2, 2 ranks", "ms", 80.0, "torch", 100.0, 1.2, rate=["f32 peak", 1.5e11])
        product = rows.compared("mlp", "GFLOP/s", 90.0, "blis", 100.0, 0.97, more_is_better=True, limit="peak 120 GFLOP/s", share=0.75)
        text, missed, failed = suite_table.write([entry("limits", limit), entry("steps", step), entry("products", product, rows.failed("llama", "no | b")),
                                                  entry("gpt2", error="no PyTorch", job="gpt2 short")], ["scale many"])
        self.assertEqual((missed, failed), (2, 1))
        self.assertEqual(cells_of(text, "gpt-2, 2 ranks"), ["gpt-2, 2 ranks", "80 ms", "torch 100", "1.25", "1.2 ×", "reached", "f32 peak 200 GFLOP/s", "75%"])
        self.assertEqual(cells_of(text, "mlp"), ["mlp", "90 GFLOP/s", "blis 100", "0.90", "0.97 ×", "**missed**", "peak 120 GFLOP/s", "75%"])
        self.assertEqual(cells_of(text, "llama")[1], "did not run: no / b")
        self.assertEqual(cells_of(text, "products"), ["products", "2", "0", "2", "0"])
        self.assertEqual(cells_of(text, "gpt2 short")[1], "did not run: no PyTorch")
        self.assertIn("## Not measured yet\n\nscale many.", text)
        self.assertTrue(all(len(line) <= 100 or line.startswith("|") for line in text.splitlines()))

    def test_single_figures(self):
        self.assertFalse(rows.at_most("memory", "MiB", 13, 12)["reached"])
        self.assertTrue(rows.at_least("rate", "GB/s", 13, 12)["reached"])
        self.assertEqual(rows.text(rows.at_most("memory", "MiB", 13, 12)), "memory: 13 MiB, bar ≤ 12 MiB: missed")

    def test_kernels_stand_beside_the_copy_of_their_size(self):
        copies = {1 << 20: 40e9, 1 << 26: 10e9}
        row = kernels.row_of("gelu/1", {"bytes": 3 << 19, "cpu_time": 50.0}, copies, [1e11, 2e11])
        self.assertEqual((row["what"], row["limit"], round(row["share"], 2), row["reached"]), ("gelu bf16", "a copy of 1,024 KiB 40 GB/s", 0.79, False))
        row = kernels.row_of("attention/0/128", {"GFLOP/s": 90.0, "cpu_time": 1.0}, copies, [1e11, 2e11])
        self.assertEqual((row["what"], row["ratio"], row["reached"]), ("attention f32, 128 tokens", 0.9, True))


class Gpt2(unittest.TestCase):
    def test_the_faster_of_compiled_and_eager_counts(self):
        found = {("prun", "f32"): (2.0, 1e11), ("llm.c", "f32"): (5.0, None), ("compiled", "f32"): (2.2, None), ("eager", "f32"): (2.05, None)}
        out = gpt2_cpu.rows_of("short", 4, 64, ["f32", "bf16"], found, {("prun", "bf16"): "no memory"}, "2.15")
        self.assertEqual([(row["peer"], row["reached"]) for row in out], [("llm.c", True), ("PyTorch 2.15 eager", False), (None, False)])
        self.assertEqual(out[0]["prun"], 128)
        self.assertEqual(out[2]["error"], "no memory")

    def test_what_llm_c_takes(self):
        self.assertEqual(round(gpt2_cpu.needed_gib(4, 64), 1), 2.4)


if __name__ == "__main__":
    PRUN = sys.argv.pop(1)
    unittest.main()
