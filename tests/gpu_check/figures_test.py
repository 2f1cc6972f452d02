#!/usr/bin/env python3
"""The measuring parts of tools/gpu-check with simulated peers: their output, and the figures computed from it.

Usage: figures_test.py PRUN TOP
"""
# ruff: noqa: I001  (played.py makes gpu_check importable)
import collections
import json
import subprocess
import sys
import unittest.mock

from played import PYTHON, TOP, Machine, run_tests

import token_ids
from gpu_check import kernels, op_table
from gpu_check.bars import ALONE, ATTENTION, BARS, COLLECTIVES, GAPS, GEMM, HOST, TRAINING
from gpu_check.results import FAIL, IMPOSSIBLE, PASS

FAST = "prun deterministic=0,autotune=1"
PRUN_ALONE = f"{FAST}: 6,553,600 tokens/s, MFU 560.6%; prun: 6,553,600 tokens/s, MFU 560.6%"


class Figures(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(2)

    def figures(self, part, *words, **environment):
        done, found = self.check("--only", part, *words, **environment)
        return done, self.by_name(found)


class Training(Figures):
    def torch(self, step_s, text=""):
        done = json.dumps({"torch": "9.9", "step_s": step_s, "first_loss": 11, "last_loss": 9})
        out = f'print({done!r})' if not text else f"raise SystemExit({text!r})"
        return self.program("torch", f"{PYTHON}import sys\nif '-c' not in sys.argv:\n  {out}\n")

    def test_training_is_compared_with_pytorch(self):
        _, found = self.figures("pytorch", "--torch", str(self.torch(0.0125)))
        result = found[TRAINING]
        self.assertEqual(result["status"], PASS, result)
        # 64 x 1,024 tokens in 10 ms, 6 x 123.7M + 12 x 12 x 768 x 1,024 FLOPs each, relative to 1 PFLOP/s.
        self.assertIn(f"{FAST}: 6,553,600 tokens/s, MFU 560.6%; PyTorch 9.9 eager: 5,242,880 tokens/s, MFU 448.5%; "
                      "PyTorch 9.9: 5,242,880 tokens/s, MFU 448.5%", result["figure"])
        self.assertIn("1.250 × PyTorch, with the same bits in every run 1.250 ×", result["figure"])
        self.assertEqual([row[0] for row in result["table"]], ["", FAST, "PyTorch 9.9 eager", "PyTorch 9.9", "prun"])
        runs = [line for line in self.calls.read_text().splitlines() if "gpt2.lua" in line]
        self.assertEqual(["deterministic=0,autotune=1" in line for line in runs], [True, False])
        text = (self.folder / "out/report.md").read_text()
        self.assertIn(f"| {TRAINING} | at least PyTorch's tokens/s | {FAST}: 6,553,600", text)
        self.assertIn("| prun | 10.00 | 6,553,600 |", text)
        _, found = self.figures("pytorch", "--fresh", "--torch", str(self.torch(0.009)))
        self.assertEqual(found[TRAINING]["status"], FAIL)

    def test_prun_has_its_figure_where_pytorch_has_none(self):
        _, found = self.figures("pytorch", "--torch", str(self.torch(0, "no compiler")))  # fails with and without torch.compile
        self.assertEqual((found[TRAINING]["status"], found[TRAINING]["figure"]), (FAIL, f"{PRUN_ALONE.split('; ')[0]}; 64 samples a step"))
        self.assertIn("no compiler", found[TRAINING]["note"])
        done = json.dumps({"torch": "9.9", "step_s": 0.0125, "last_loss": 9})
        torch = self.program("torch", f"{PYTHON}import sys\nif '--eager' in sys.argv: print({done!r})\nelif '-c' not in sys.argv: raise SystemExit('no gcc')\n")
        _, found = self.figures("pytorch", "--fresh", "--torch", str(torch))
        self.assertEqual((found[TRAINING]["status"], found[TRAINING]["note"]), (FAIL, "not the PyTorch that was asked for"))
        self.assertIn("PyTorch 9.9 without torch.compile, which failed: no gcc: 5,242,880", found[TRAINING]["figure"])
        _, found = self.figures("pytorch", "--torch", "/nowhere")
        self.assertEqual(found[TRAINING]["status"], FAIL)  # from the stored result
        _, found = self.figures("pytorch", "--fresh", "--torch", "/nowhere")
        self.assertEqual(found[TRAINING]["status"], IMPOSSIBLE)
        self.assertIn(f"no PyTorch: /nowhere: No such file or directory (--torch PYTHON); {PRUN_ALONE}", found[TRAINING]["note"])

    def test_a_batch_that_does_not_fit_is_halved_on_both_sides(self):
        torch = self.program("torch", PYTHON + "import sys\nif '-c' in sys.argv: sys.exit()\nb = int(sys.argv[sys.argv.index('--batch') + 1])\n"
                             "if b > 16: raise SystemExit('out of memory: CUDA')\nprint('{\"torch\": \"9.9\", \"step_s\": 0.02, \"last_loss\": 9}')\n")
        done = subprocess.run([sys.executable, TOP / "tools/bench/gpu_train.py", "--prun", self.prun, "--torch", torch, "--rounds", "1", "--context", "8", "--peak", "500"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("16 × 8 tokens a step", done.stdout)
        self.assertEqual(done.stderr.count("trying"), 2)

    def test_ids_by_zipfs_law_repeat_and_uniform_ids_do_not(self):
        shares = {kind: collections.Counter(token_ids.ids_of(kind, 50304, 20000)).most_common(1)[0][1] / 20000 for kind in ("uniform", "zipf")}
        self.assertLess(shares["uniform"], 0.001)
        self.assertAlmostEqual(shares["zipf"], 1 / 2.7 / sum(1 / (r + 2.7) for r in range(50257)), delta=0.01)


class Gpt2(Figures):
    def test_the_step_alone_has_a_table_by_op(self):
        self.gpus(1, "NVIDIA H100")
        done, found = self.figures("gpt2")
        self.assertEqual(done.returncode, 0, done.stdout)
        result = found[ALONE]
        self.assertEqual(result["figure"], "10.00 ms, 6,553,600 tokens/s, MFU 40.0% (median of 30 steps); predicted 8.0 ms, floor 4.0 ms")
        self.assertEqual(result["table"], [["part of the step", "ops", "measured, ms", "floor, ms", "measured / floor", "predicted, ms", "of which, ms"],
                                           ["forward GEMMs", "2", "4.00", "2.00", "2.00", "5.00", "linear 4.00"],
                                           ["attention", "1", "1.50", "1.00", "1.50", "1.00", ""],
                                           ["AdamW, norm2, embedding", "0", "", "0.50", "", "0.50", ""], ["sum", "3", "5.50", "3.50", "1.57", "6.50", ""]])
        self.assertEqual([(found[name]["status"], found[name]["figure"]) for name in (HOST, GAPS)],
                         [(PASS, "32.5 µs (median of 30 steps; nine of ten under 32.5 µs)"), (PASS, "0.40% (median of 30 steps; nine of ten under 0.40%)")])
        calls = self.calls.read_text().splitlines()
        self.assertEqual([line.split()[0] for line in calls], ["tools/bench/gpt2.lua", "tools/bench/gpt2.lua", "sim", "sim"])  # measured once, and traced
        self.assertIn("dgx-h100.yaml", calls[2] + calls[3])
        self.assertIn("memory_efficiency: 1", (self.folder / "out/ideal-dgx-h100.yaml").read_text())

    def test_a_gpu_without_a_cluster_file_has_no_prediction(self):
        _, found = self.figures("gpt2", "--check", ALONE)
        self.assertEqual(found[ALONE]["table"][1], ["forward GEMMs", "2", "4.00", "", "", "", "linear 4.00"])

    def test_the_bar_of_the_host_is_held(self):
        self.prun.write_text(self.prun.read_text().replace("32.5", "50.0"))
        _, found = self.figures("gpt2", "--check", HOST)
        self.assertEqual((found[HOST]["status"], found[HOST]["bar"]), (FAIL, "under 50 µs"))

    def test_a_traces_first_steps_and_waits_do_not_count(self):
        events = [{"ph": "X", "pid": rank, "tid": 0, "ts": 0, "dur": dur, "name": name, "cat": cat, "args": {"step": step}}
                  for rank, step, name, dur, cat in ((0, 0, "linear a", 9e6, "compute"), (0, 1, "linear a", 9e6, "compute"), (0, 2, "linear a", 1000, "compute"),
                                                     (0, 2, "linear b", 2000, "compute"), (0, 3, "linear a", 3000, "compute"), (1, 2, "linear a", 9e6, "compute"),
                                                     (0, 2, "(wait for edge)", 9e6, "wait"), (0, 2, "next_batch", 9e6, "host"))]
        self.assertEqual(op_table.measured(events), {"linear": (2, 0.003)})
        # An epilogue has no lower bound of its own if it is fused into a GEMM.
        rows = op_table.table({"linear_gelu": (1, 0.002)}, {"linear": 0.001, "gelu": 0.001}, {"linear": 0.001, "gelu": 0.001})
        self.assertEqual(rows[1], ["forward GEMMs", "1", "2.00", "1.00", "2.00", "2.00", "linear_gelu 2.00"])
        self.assertEqual(op_table.read(self.folder / "none.json"), {})

    @unittest.mock.patch("gpu_check.gpt2.TOKENS", 1000)
    def test_variants_are_compared_with_the_step_as_it_is(self):
        _, found = self.figures("variants")
        self.assertEqual(list(found), ["vocabulary of 50,257", "vocabulary of 50,257, not padded", "vocabulary of 50,304", "deterministic=1", "autotune=0", "cudnn=0", "ids by Zipf's law"])
        self.assertEqual({r["figure"] for r in found.values()}, {"10.00 ms, 1.000 × the step as it is"})
        calls = self.calls.read_text().splitlines()
        self.assertEqual(len(calls), 8)
        self.assertIn("--device-options deterministic=0,autotune=1,cudnn=0", calls[6])
        self.assertIn("vocab=50257", calls[1])
        self.assertIn("--pad-vocabulary 1", calls[2])
        self.assertIn("tokens_zipf.bin", calls[7])

    def test_generation_by_the_length_of_the_context(self):
        done, found = self.figures("generation")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual({name: r["figure"] for name, r in found.items()}, {f"{n}k of context": "250.0 tokens/s, 4.00 ms each" for n in (1, 4, 32)})
        self.assertEqual(self.calls.read_text().count("--checkpoint"), 4)  # trained once


class Kernels(Figures):
    def rows(self):
        return [{"group": "gpt2", "what": what, "ours_us": us, "best_us": best, "best": "x", "flops": 1e6, "judged": what != "own", "problem": problem}
                for what, us, best, problem in (("a", 10.2, 10, ""), ("b", 12, 10, ""), ("c", 9, 0, ""), ("own", 20, 10, ""), ("d", 0, 0, "broke"))]

    def test_kernels_are_held_to_the_best(self):
        rows = self.rows()
        for chosen, ending, status, note in ((rows[:1] + rows[2:4], "", PASS, ""), (rows, "", FAIL, "gpt2 b 1.20 ×; gpt2 d: broke"),
                                             (rows[:1], "echo cut off >&2; exit 2", FAIL, "exit 2: cut off"),
                                             (rows[2:3], "", FAIL, "cuBLASLt has none of the shapes")):
            self.program("build/bin/cuda_kernel_bench", "#!/bin/sh\n[ \"$1 $2 $3 $4\" = '--family gemm --only GPT-2 124M' ] || exit 1\nfor file; do :; done\n"
                                                        f"echo '{json.dumps({'rows': chosen})}' >$file\n{ending}\n")
            _, found = self.figures("kernels", "--check", GEMM, "--fresh")
            result = found[GEMM]
            self.assertEqual((result["status"], result["note"]), (status, note))
            self.assertEqual(len(result["table"]), 1 + len(chosen))
            if status == PASS:
                self.assertEqual(result["figure"], "1 of 1 shapes hold with deterministic=0,autotune=1, at most 1.020 × (gpt2 a); by default 1 of 1")

    def test_kernels_without_a_bar_are_shown(self):
        for ending, status, note in (("", PASS, ""), ("exit 1", FAIL, "exit 1")):
            self.program("build/bin/cuda_kernel_bench", f"#!/bin/sh\n[ \"$2\" = experts ] || exit 2\nfor file; do :; done\n"
                                                        f"echo '{json.dumps({'rows': self.rows()[:1]})}' >$file\n{ending}\n")
            _, found = self.figures("kernels-figures", "--check", "experts", "--fresh")
            self.assertEqual(found["experts"]["status"], status)
            self.assertIn(note, found["experts"]["note"])
            self.assertEqual((found["experts"]["figure"], len(found["experts"]["table"])), ("1 figures, for information", 2))

    def test_a_family_that_the_bench_does_not_have_is_not_possible(self):
        self.program("build/bin/cuda_kernel_bench", "#!/bin/sh\necho \"cuda_kernel_bench: --family: '$2' is not measured by this program\" >&2\nexit 2\n")
        _, found = self.figures("kernels", "--check", ATTENTION)
        self.assertEqual((found[ATTENTION]["status"], found[ATTENTION]["note"]),
                         (IMPOSSIBLE, "cuda_kernel_bench: --family: 'attention' is not measured by this program"))

    def test_rows_of_a_bench_that_is_cut_off_are_kept(self):
        self.program("build/bin/cuda_kernel_bench", f"#!/bin/sh\nfor file; do :; done\necho '{json.dumps({'rows': self.rows()[:1]})}' >$file\nsleep 60\n")
        with unittest.mock.patch.object(kernels.PART, "limit", 1.2):
            done, found = self.figures("kernels", "--check", ATTENTION, "--budget", "60")
        self.assertEqual(done.returncode, 75, done.stdout)
        self.assertEqual((found[ATTENTION]["status"], len(found[ATTENTION]["table"])), ("cut off", 2))
        self.assertIn("1 of 1 shapes hold", self.lines(done)["kernels"])

    def test_the_ops_must_run_on_the_real_device(self):
        for text, status in (("echo cuda device: $PRUN_CUDA_PLUGIN", PASS), ("echo the substitute", FAIL), ("echo cuda device: $PRUN_CUDA_PLUGIN; exit 1", FAIL)):
            self.agreement("A B", f"echo '[  PASSED  ] 1 test.'\n{text}")
            _, found = self.check("--only", "ops", "--fresh")
            self.assertEqual({name: r["status"] for name, r in self.by_name(found).items()}, {"A": status, "B": status})

    def test_a_sanitizer_looks_at_every_group_of_ops(self):
        self.agreement("A B BitsOfTheCpu")
        self.program("bin/compute-sanitizer", '#!/bin/sh\necho "$2 $6" >>$FAKE_CALLS\necho "========= ERROR SUMMARY: 3 errors"\n'
                                              'case $2$6 in memcheck*A) exit 99;; memcheck*|racecheck*) exit 0;; esac\n'
                                              'echo "========= Error: Device not supported"; exit 1\n')
        _, found = self.check("--only", "memcheck,racecheck,synccheck")
        self.assertEqual([(r["status"], r["figure"], r["note"]) for r in found["results"]],
                         [(FAIL, "1 of 2 groups of ops clean", "Ops.A: ERROR SUMMARY: 3 errors"), (PASS, "2 of 2 groups of ops clean", ""),
                          (IMPOSSIBLE, "", "compute-sanitizer: ========= Error: Device not supported")])
        asked = self.calls.read_text().splitlines()
        self.assertEqual({line for line in asked if line.startswith("racecheck")}, {f"racecheck --gtest_filter=Ops.{group}" for group in "AB"})


class Suites(Figures):
    def test_each_item_of_a_suite_has_its_own_result(self):
        done, found = self.figures("conform,conform-bits", FAKE_CONFORM="streams")
        self.assertEqual(done.returncode, 1)
        self.assertEqual({name for name, r in found.items() if r["status"] == FAIL}, {"streams"})
        self.assertEqual((found["streams"]["note"], found["bits"]["part"]), ("the gate opened by itself (Streams.Wait)", "conform-bits"))
        self.assertEqual(len(found), 11)
        calls = self.calls.read_text().splitlines()
        self.assertTrue(calls[-1].endswith("bits --json"), calls[-1])  # after the others
        self.assertEqual(len(calls), 13)  # one per item, and two retries of one

    def test_on_one_card_the_suite_of_transports_shares_it(self):
        self.gpus(1)
        _, found = self.figures("conform-nccl")
        self.assertEqual({name: r["status"] for name, r in found.items() if r["status"] != PASS}, {"collectives on device memory": IMPOSSIBLE})
        self.assertIn("conform nccl faults --transport-options share=1", self.calls.read_text())

    def test_items_with_more_ranks_than_cards_share_them(self):
        _, found = self.figures("conform-nccl", "--check", "misuse", FAKE_CONFORM="many")
        self.assertEqual(found["misuse"]["status"], PASS)
        self.assertEqual(self.calls.read_text().splitlines(), ["conform nccl misuse --json", "conform nccl misuse --transport-options share=1 --json"])

    def test_collectives_are_held_to_nccl_tests(self):
        for us, status in ((9.9, PASS), (9.0, FAIL)):
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
                self.program(f"peers/{name}_perf", f"#!/bin/sh\necho '# comment'\n"
                             f"echo '  65536  16384  float  sum  -1  {us}  1.0  1.0  0  20.0  1.0  1.0  0'\n")
            _, found = self.figures("nccl-tests", "--fresh", "--nccl-tests", str(self.folder / "peers"))
            result = found[COLLECTIVES]
            self.assertEqual(result["status"], status, result)
            self.assertIn("4 sizes, at most", result["figure"])

    def test_nccl_between_ranks_that_share_a_card(self):
        self.gpus(1)
        _, found = self.figures("nccl-shared", "--check", "share a card")
        collectives, step, abort = found.values()
        self.assertEqual((collectives["status"], collectives["figure"]), (PASS, "18 rows, results compared"))
        self.assertEqual((step["status"], step["figure"]), (PASS, "0.0e+00 over 40 steps"))
        self.assertEqual((abort["status"], abort["note"]), (FAIL, "no step was seen before the end: exit 0: "))  # the fake prun has no ranks
        self.assertIn("--transport nccl --transport-options nccl.share=1 --ranks-per-device 2", self.calls.read_text())

    def test_every_bar_is_in_the_report(self):
        self.check("--only", "doctor")
        text = (self.folder / "out/report.md").read_text()
        self.assertEqual([name for name in BARS if f"| {name} | " not in text], [])


if __name__ == "__main__":
    run_tests()
