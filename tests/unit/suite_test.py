#!/usr/bin/env python3
"""tools/bench/suite.py: really runs a tiny selection of its jobs, resumes, and prints the table. Times nothing."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "tools/bench"
sys.path.insert(0, str(BENCH))
import attend  # noqa: E402
import bounds  # noqa: E402
import gpt2_cpu  # noqa: E402
import kernels  # noqa: E402
import rows  # noqa: E402
import steady  # noqa: E402
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
            self.assertRegex(done.stderr, r"^1/[12] step mlp-2, 0 s: no PyTorch: --torch PYTHON\n")  # 2 with AVX2 alone
        self.assertIn("| step mlp-2 | did not run: no PyTorch: --torch PYTHON |", (self.folder / "table.md").read_text())

    def test_a_name_that_is_none_is_refused(self):
        for bench, option, wrong, said in (("train_step.py", "--rows", "gpt-2,zero-2", "there is no 'zero-2' (did you mean 'zero3-2'?)"),
                                           ("products.py", "--types", "f23", "there is no 'f23' (did you mean 'f32'?)"),
                                           ("products.py", "--types", "BF16", "there is no 'BF16' (did you mean 'bf16'?)"),
                                           ("products.py", "--shapes", "mlp,x", "there is no 'x'; there are gpt, mlp, ddp_example, "),
                                           ("line.py", "--ops", "reduce_scater", "there is no 'reduce_scater' (did you mean 'reduce_scatter'?)"),
                                           ("calibrated.py", "--rows", "zero", "there is no 'zero' (did you mean 'zero3'?)"),
                                           ("faults.py", "--only", "kil", "there is no 'kil' (did you mean 'kill'?)"),
                                           ("nccl_tests.py", "--ops", "all_redcue", "there is no 'all_redcue' (did you mean 'all_reduce'?)"),
                                           ("gpt2_cpu.py", "--batches", "shrt", "there is no 'shrt' (did you mean 'short'?)")):
            with self.subTest(bench=bench, wrong=wrong):
                done = subprocess.run([sys.executable, str(BENCH / bench), option, wrong], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"{bench}: error: argument {option}: {said}", done.stderr)

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
                                                  entry("gpt2", error="no PyTorch", job="gpt2 short")], ["scale many"], suite_table.Table())
        self.assertEqual((missed, failed), (3, 2))
        self.assertEqual(cells_of(text, "gpt-2, 2 ranks"), ["gpt-2, 2 ranks", "80 ms", "torch 100", "1.25", "1.2 ×", "reached", "f32 peak 200 GFLOP/s", "75%"])
        self.assertEqual(cells_of(text, "mlp"), ["mlp", "90 GFLOP/s", "blis 100", "0.90", "0.97 ×", "**missed**", "peak 120 GFLOP/s", "75%"])
        self.assertEqual(cells_of(text, "llama")[1], "did not run: no / b")
        self.assertEqual(cells_of(text, "products"), ["products", "2", "0", "2", "1"])
        self.assertEqual(cells_of(text, "gpt2 short")[1], "did not run: no PyTorch")
        self.assertIn("## Not measured yet\n\nscale many.", text)
        self.assertTrue(all(len(line) <= 100 or line.startswith("|") for line in text.splitlines()))

    def test_a_peer_without_a_bar(self):
        row = rows.compared("attention f32, 64 tokens, against PyTorch", "GFLOP/s", 60.0, "PyTorch 2.15", 30.0, more_is_better=True)
        text, missed, failed = suite_table.write([entry("kernels", row)], [], suite_table.Table())
        self.assertEqual((missed, failed), (0, 0))
        self.assertEqual(cells_of(text, row["what"])[1:], ["60 GFLOP/s", "PyTorch 2.15 30", "2.00", "", "", "", ""])
        self.assertEqual(cells_of(text, "kernels")[1], "0")
        self.assertEqual(rows.text(row), "attention f32, 64 tokens, against PyTorch: 60 GFLOP/s, PyTorch 2.15 30, 2.00 ×")

    def test_lines_that_are_not_measured_again_stay(self):
        limit, slow = rows.alone("f32 peak", "GFLOP/s", 2000.0), rows.compared("gpt-2, 2 ranks", "ms", 80.0, "torch", 90.0, 1.2, rate=["f32 peak", 1.5e12])
        first, *_ = suite_table.write([entry("limits", limit), entry("steps", slow), entry("scale", error="no memory", job="scale many")],
                                      ["step mlp-2", "gpt2 short"], suite_table.Table())
        table = suite_table.read(first)
        self.assertEqual(suite_table.write([], table.undone, suite_table.read(first))[0], first)
        self.assertTrue(table.is_of({**MACHINE, "kernel": "7", "memory_gib": 4.0}))
        self.assertFalse(table.is_of({**MACHINE, "caches": "L2 1,024 KiB"}))
        self.assertFalse(suite_table.read("# Notes\n").is_of(MACHINE))

        fast, mlp = rows.compared("gpt-2, 2 ranks", "ms", 40.0, "torch", 90.0, 1.2, rate=["f32 peak", 1e12]), rows.compared("mlp", "ms", 1.0, "torch", 2.0, 1.1)
        since = {"day": "2026-11-25", "commit": "d", "rounds": 1}
        entries = [{**each, "machine": {**MACHINE, **since}} for each in (entry("steps", fast), entry("steps", mlp), entry("scale", mlp, job="scale many"))]
        text, missed, failed = suite_table.write(entries, ["gpt2 short"], table)
        self.assertEqual((missed, failed), (0, 0))
        self.assertEqual(cells_of(text, "f32 peak"), ["f32 peak", "2,000 GFLOP/s", "", "", "", "", "", ""])
        self.assertEqual(cells_of(text, "gpt-2, 2 ranks")[3:], ["2.25", "1.2 ×", "reached", "f32 peak 2,000 GFLOP/s", "50%"])
        self.assertEqual(cells_of(text, "steps"), ["steps", "2", "2", "0", "0"])
        self.assertNotIn("no memory", text)
        self.assertTrue(text.endswith("## Not measured yet\n\ngpt2 short.\n"))
        self.assertIn("2026-11-23 to 2026-11-25, prun c, d; medians of 1 or 3 rounds,", " ".join(text.split()))

    def test_single_figures(self):
        self.assertFalse(rows.at_most("memory", "MiB", 13, 12)["reached"])
        self.assertTrue(rows.at_least("rate", "GB/s", 13, 12)["reached"])
        self.assertEqual(rows.text(rows.at_most("memory", "MiB", 13, 12)), "memory: 13 MiB, bar ≤ 12 MiB: missed")

    def machine(self, tiles=False):
        rates = {"multiply_add": 16e9, "simple": 32e9, "divide": 2e9, "root": 2e9, "word_product": 16e9, "round": 16e9}
        found = {f"rate/{kind}": {"lanes": rate, "cpu_time": 1e6} for kind, rate in rates.items()}
        for stream, fast in (("copy", 40e9), ("read", 50e9), ("update", 80e9)):
            for size, rate in ((1 << 20, fast), (1 << 26, fast / 4)):
                found[f"{stream}/{size}"] = {"bytes": size, "cpu_time": size / rate * 1e6}
        return kernels.Machine(found, rates=[25e9, 50e9, 32e9, 64e9], tiles=tiles)

    def test_the_least_time_of_a_kernel_counts(self):
        times = (("gelu/0", 3.0), ("copy/1", 2.0), ("gelu/0", 1.5), ("copy/1", 4.0))
        found = kernels.least_of({"name": name, "cpu_time": time} for name, time in times)
        self.assertEqual([(name, one["cpu_time"]) for name, one in found.items()], [("gelu/0", 1.5), ("copy/1", 2.0)])

    def test_bounds_alone_are_no_kernels(self):
        self.assertTrue(kernels.names_no_kernel(["copy/4096", "rate/simple"]))
        self.assertTrue(kernels.names_no_kernel([]))
        self.assertFalse(kernels.names_no_kernel(["copy/4096", "gelu/0"]))

    def row(self, name, size, elements, microseconds):
        return kernels.row_of(name, {"bytes": size, "elements": elements, "cpu_time": microseconds}, self.machine())

    def test_the_slower_of_memory_and_arithmetic_bounds_a_kernel(self):
        row = self.row("layernorm/0", 3 << 19, 1 << 10, 50.0)  # few elements for its bytes
        self.assertEqual((row["what"], row["limit"], round(row["share"], 2), row["reached"]), ("layernorm f32", "a copy of 1,024 KiB 40 GB/s", 0.79, False))
        row = self.row("gelu/0", 1 << 20, 1 << 17, 110.0)  # 11 FMAs per element: 90 µs
        self.assertEqual((row["limit"], round(row["share"], 2), row["reached"]), ("arithmetic 11.6 GB/s", 0.82, True))
        row = self.row("adamw_7m", 7 << 26, 1 << 24, 30e3)  # in place, larger than the caches
        self.assertEqual((row["limit"], round(row["share"], 2)), ("an update in place of 65,536 KiB 20 GB/s", 0.78))
        self.assertTrue(self.row("cross_entropy/0", 1 << 20, 1 << 10, 25.0)["limit"].startswith("a read of 1,024 KiB"))

    def test_the_arithmetic_of_the_bound(self):
        rates, work = self.machine().rates, bounds.Work
        self.assertEqual(work(multiply_add=3).seconds(rates), 3 / 16e9)
        self.assertEqual(work(multiply_add=3, simple=5).seconds(rates), 8 / 32e9)  # all at the rate of simple instructions
        self.assertEqual(work(multiply_add=3, divide=1, root=1).seconds(rates), 1 / 1e9)  # both use one unit
        self.assertEqual(work(divide=1, root=1).seconds({"simple": 1, "divide": 2}), 1)  # a kind without a rate does not count
        beside = rates | {"round_beside": 8e9}  # two simple instructions and one rounding in four cycles
        self.assertEqual(work(simple=6, round=2).seconds(beside), (6 + 2 * 2) / 32e9)
        self.assertEqual(bounds.EXP2 + bounds.EXP2, bounds.EXP2.times(2))
        work, stream = bounds.kernel_of("gelu", half=False)
        self.assertEqual((work.multiply_add, work.simple, stream), (11, 5, "copy"))
        half, _ = bounds.kernel_of("gelu_dx", half=True)
        self.assertEqual((half.simple - bounds.kernel_of("gelu_dx", half=False)[0].simple, half.round), (2.5, 1))  # reads two operands, writes one in order
        self.assertEqual(bounds.kernel_of("adamw_cast_7m", half=False)[0].round, 1)
        self.assertGreater(bounds.kernel_of("residual_norm", half=True, backward=True)[0].simple, bounds.kernel_of("layernorm_grad", half=True)[0].simple)

    def test_attention_stands_beside_a_product_and_its_arithmetic(self):
        found = {"GFLOP/s": 20.0, "cpu_time": 1.0, "head": 64}
        row = kernels.row_of("attention/0/128", found, self.machine())
        self.assertEqual((row["what"], row["ratio"], row["reached"]), ("attention f32, 128 tokens", 0.8, True))
        self.assertEqual(row["share"], 20 / 32 * (128 + 6) / 128)  # six FMAs of softmax in addition to two dot products of 64
        flops = 256e9  # scores: 256e9 / (2·64·2)
        self.assertEqual(bounds.of_attention("attention", True, flops, 64, self.machine().rates, [32e9, 64e9], True), 1.5 * flops / 64e9)  # tile GEMMs overlap
        vectors = bounds.of_attention("attention", True, flops, 64, self.machine().rates, [32e9, 64e9], False)
        self.assertEqual(vectors, 1e9 * (96 + 6) / 16e9)  # 64 in pairs, half an instruction each, and 64 in f32
        self.assertGreater(bounds.of_attention("attention_grad", False, flops, 64, self.machine().rates, [32e9, 64e9], False), flops / 32e9)

    def test_packed_documents_may_take_1_2_times_the_time_of_single_ones(self):
        source = (BENCH / "attend_bench.cc").read_text()
        least = {f"{name}/{direction}": 100.0 for name in re.findall(r'add\("([^"]+)"', source) for direction in ("forward", "backward")}
        least |= {"packed even/backward": 120.0, "packed uneven/forward": 121.0, "causal/forward": 200.0}
        found = {row["what"]: row for row in attend.rows_of(least)}
        self.assertEqual(len(found), 2 * len(attend.PAIRS))
        self.assertEqual({what: row["reached"] for what, row in found.items() if "documents" in what},
                         {"attend forward, documents of 128 tokens": True, "attend backward, documents of 128 tokens": True,
                          "attend forward, documents of 512 to 32 tokens": False, "attend backward, documents of 512 to 32 tokens": True})
        self.assertEqual((found["attend forward, causal"]["ratio"], found["attend forward, causal"]["reached"]), (0.5, None))

    def test_every_kernel_of_the_bench_has_a_bound(self):
        source = (BENCH / "kernel_bench.cc").read_text()
        names = re.findall(r"^BENCHMARK\((\w+)\)", source, re.MULTILINE)
        self.assertIn("rotary", names)
        for name in names:
            if name not in (*kernels.STREAMS, *bounds.ATTENTION):
                self.assertGreater(bounds.kernel_of(name, half=True)[0].seconds(self.machine().rates), 0)


class Gpt2(unittest.TestCase):
    def rounds(self, rates):
        """Returns the result of steady.measure for two rounds of two sides, given these rates of cores."""
        rates, numbers = iter(rates), iter(range(100))
        return steady.measure(2, lambda look: [look(), next(numbers)][1], lambda: next(rates, None), lambda seen: max(seen, 8.0))

    def test_rounds_that_others_disturb_do_not_count(self):
        # Rates: before the first round, then within and after each round.
        self.assertEqual(self.rounds([8, 8, 7.5, 8, 8]), ([0, 1], 0.9375))
        self.assertEqual(self.rounds([8, 4, 8, 8, 8, 7.5, 8]), ([1, 2], 0.9375))
        self.assertEqual(self.rounds([8, 8, 4, 8, 8, 8, 8, 8, 8]), ([2, 3], 1.0))  # the second round began at rate 4
        # All four rounds were disturbed; the two least disturbed count.
        self.assertEqual(self.rounds([4, 4, 4, 5, 6, 6, 6, 7, 6]), ([2, 3], 0.75))
        self.assertEqual(self.rounds([]), ([0, 1], None))  # product_bench is missing
        self.assertEqual((steady.disturbed(0.6), steady.disturbed(0.9), steady.disturbed(None)), ({"disturbed": 0.6}, {}, {}))

    def test_the_faster_of_compiled_and_eager_counts(self):
        found = {("prun", "f32"): (2.0, 1e11), ("compiled", "f32"): (2.2, None), ("eager", "f32"): (2.05, None)}
        out = gpt2_cpu.rows_of(4, 64, ["f32", "bf16"], found, {("prun", "bf16"): "no memory"}, "2.15")
        self.assertEqual([(row["peer"], row["reached"]) for row in out], [("PyTorch 2.15 eager", False), (None, False)])
        self.assertEqual(out[0]["prun"], 128)
        self.assertEqual(out[1]["error"], "no memory")


if __name__ == "__main__":
    PRUN = sys.argv.pop(1)
    unittest.main()
