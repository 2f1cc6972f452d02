#!/usr/bin/env python3
"""tools/gpu-check: its logic with the CPU device, and with a prun, an nvidia-smi and peers that only play.

What is played is a machine with GPUs; nothing here runs on one. Usage: gpu_check_test.py PRUN TOP
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

PRUN, TOP = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
FAKE = pathlib.Path(__file__).resolve().parent / "fake_prun.py"
TINY = ("layers=1", "width=16", "heads=1", "context=8", "batch=4", "steps=1")
FAST = "prun deterministic=0,autotune=1"
PRUN_ALONE = f"prun: 6,553,600 tokens/s, MFU 560.6%; {FAST}: 6,553,600 tokens/s, MFU 560.6%"
PYTHON = f"#!{sys.executable} -IS\n"  # what plays starts hundreds of times
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOP / "tools"))
from gpu_check import libraries, report, trace  # noqa: E402
from gpu_check.check import Check, Step, Verdict, perform  # noqa: E402
from gpu_check.context import Context  # noqa: E402
from gpu_check.figures import BARS, COLLECTIVES, GAPS, HOST, NORMS, PRODUCTS, TRAINING  # noqa: E402
from gpu_check.main import Run, main, parse  # noqa: E402
from gpu_check.results import FAIL, IMPOSSIBLE, PASS, BudgetSpent, Result  # noqa: E402


class Machine(unittest.TestCase):
    """A folder with results, programs that play, and what tools/gpu-check says there."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.calls = self.folder / "calls"
        self.prun = self.program("build/bin/prun", PYTHON + FAKE.read_text())
        for plugin in ("plugins/nccl.so", "devices/cuda.so"):
            (self.folder / "build/lib/prun" / plugin).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "build/lib/prun" / plugin).touch()

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def gpus(self, count):
        """An nvidia-smi that lists so many."""
        names = "".join(f"echo NVIDIA Fake {i}; " for i in range(1, count + 1))
        self.program("bin/nvidia-smi", f'#!/bin/sh\ncase "$1" in *name*) {names or ":"};; *) echo 580.1;; esac\n')

    def check(self, *words, prun=None, **environment):
        env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        env.update(PATH=f"{self.folder / 'bin'}:{env['PATH']}", FAKE_CALLS=str(self.calls), **environment)
        given = [] if "--build" in words else ["--prun", prun or self.prun]
        out, err = io.StringIO(), io.StringIO()
        with unittest.mock.patch.dict(os.environ, env, clear=True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:  # in this process: starting another dozens of times would take most of the test's time
                status = main([str(word) for word in (*given, "--out", self.folder / "out", *words)])
            except SystemExit as end:
                status = end.code
        done = subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())
        found = self.folder / "out/report.json"
        return done, json.loads(found.read_text()) if found.exists() else None

    def by_name(self, found):
        return {result["name"]: result for result in found["results"]}


def alive(process):
    for _ in range(500):  # killed it is; the kernel may take a moment
        try:
            if pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.01)
    return True


class OnTheCpu(Machine):
    def test_real_plans_against_the_reference(self):
        done, found = self.check("--device", "cpu", "--only", "parity,trace", "--plans", "ddp,collectives", "--ranks", "2", "--small", prun=PRUN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = self.by_name(found)
        self.assertEqual(set(results), {"ddp, 2 ranks, auto, f32", "collectives, 2 ranks, auto, f32", "zero3 on two ranks"})
        self.assertEqual({r["status"] for r in results.values()}, {PASS})
        self.assertRegex(results["ddp, 2 ranks, auto, f32"]["figure"], r"^\d\.\de-\d+ over 5 steps$")
        self.assertIn("nothing here ran on a GPU", done.stdout)


class NoGpu(Machine):
    def test_it_is_said_plainly(self):
        self.gpus(0)
        done, found = self.check("--only", "ops,conform,parity,bad-input,figures", "--ranks", "1,2", FAKE_DRIVER="none")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("Nothing here ran on a GPU: nvidia-smi finds none.", done.stdout)
        self.assertIn("**Nothing here ran on a GPU", (self.folder / "out/report.md").read_text())
        asked = {name for name, r in self.by_name(found).items() if r["status"] != IMPOSSIBLE}
        self.assertEqual(asked, {"no driver", "a device that does not exist"})
        self.assertIn("no GPU can be reached", self.by_name(found)["ddp, 2 ranks sharing GPUs, shm, f32"]["note"])

    def test_hidden_gpus_are_named(self):
        self.gpus(2)
        done, _ = self.check("--only", "ops", CUDA_VISIBLE_DEVICES="")
        self.assertIn("CUDA_VISIBLE_DEVICES='' hides every GPU", done.stdout)


class OnTwoGpus(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(2)

    def parity(self, mode, *words):
        return self.check("--only", "parity", "--ranks", "1,2,4", *words, FAKE_RUN=mode)

    def test_plans_that_fit(self):
        done, found = self.parity("")
        self.assertEqual(done.returncode, 0, done.stdout)
        results = self.by_name(found)
        self.assertEqual({name for name, r in results.items() if r["status"] == PASS},
                         {"single, 1 rank, auto, f32", "single, 1 rank, auto, bf16", "ddp, 1 rank, auto, f32", "ddp, 2 ranks, nccl, f32",
                          "ddp, 2 ranks, shm, f32"})
        self.assertEqual(results["huge"]["status"], IMPOSSIBLE)
        self.assertIn("fits none of 1, 2, 4 ranks", results["huge"]["note"])
        calls = self.calls.read_text()
        self.assertIn("ddp.lua --nproc 2 --device cpu", calls)
        self.assertEqual(calls.count("ddp.lua --nproc 2 --device cuda --metrics"), 4)  # twice over each transport

    def test_ranks_share_where_there_are_more_than_gpus(self):
        self.gpus(1)
        _, found = self.parity("", "--plans", "ddp")
        self.assertIn("ddp, 2 ranks sharing GPUs, shm, f32", self.by_name(found))
        self.assertIn("--transport shm --ranks-per-device 2", self.calls.read_text())

    def test_what_goes_wrong_is_told_apart(self):
        for mode, words in (("off", "instead of"), ("drift", "two runs differ from step 0 on"), ("nan", "a loss is not a number"),
                            ("crash", "exit 10: prun: rank 0 was killed by SIGSEGV")):
            done, found = self.parity(mode, "--plans", "ddp", "--fresh")
            self.assertEqual(done.returncode, 1, mode)
            failed = [r for r in found["results"] if r["status"] == FAIL]
            self.assertEqual(len(failed), 3, mode)  # one does not stop the others
            for result in failed:
                self.assertIn(words, result["note"])
                self.assertTrue(pathlib.Path(result["log"]).exists())

    def test_a_prun_that_does_not_start_is_a_failure(self):
        self.prun.write_text("#!/bin/sh\necho no >&2; exit 127\n")
        done, found = self.parity("")
        self.assertEqual((done.returncode, [(r["name"], r["note"]) for r in found["results"]]), (1, [("prun plans", "exit 127: no")]))

    def test_errors_that_users_make(self):
        done, found = self.check("--only", "bad-input")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual([r["name"] for r in found["results"] if r["status"] != PASS], ["no driver"])
        self.prun.write_text(self.prun.read_text().replace("leave(3, ", "leave(1, ").replace("made a NaN", "did something"))
        done, found = self.check("--only", "bad-input")
        self.assertEqual(done.returncode, 1)
        self.assertIn("of another program", done.stdout)
        notes = {name: r["note"] for name, r in self.by_name(found).items() if r["status"] == FAIL}
        self.assertIn("should end with 3", notes["out of memory, said before launch"])
        self.assertIn("does not say nan|inf|finite", notes["a NaN under --check-finite"])

    def test_a_budget_ends_a_call_and_the_next_goes_on(self):
        self.gpus(0)  # as for this process
        words = ["--device", "cpu", "--only", "parity", "--plans", "single,ddp", "--ranks", "1,2"]
        run = Run(parse(["--prun", str(self.prun), "--out", str(self.folder / "out"), *words]))
        command, asked = run.context.run, []

        def until_it_is_spent(*what, **how):  # in the second check, with its first command
            asked.append(what)
            if len(asked) == 4:
                run.context.budget_end = time.monotonic()
            return command(*what, **how)
        run.context.run = until_it_is_spent
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(run.finish(), 75)
        self.assertEqual((len(run.store.results), len(run.left)), (1, 3))
        self.assertIn("## Not reached yet", (self.folder / "out/report.md").read_text())
        done, found = self.check(*words)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual((found["complete"], len(found["results"])), (True, 4))
        self.assertEqual(self.calls.read_text().count("--device cpu"), 3 * 2)  # nothing twice
        self.calls.unlink()
        self.check(*words)
        self.assertNotIn("--device", self.calls.read_text())

    def test_who_is_ended_ends_what_runs_and_writes_the_report(self):
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "FAKE_CALLS": str(self.calls), "FAKE_RUN": "hang"}
        process = subprocess.Popen([sys.executable, "-S", TOP / "tools/gpu-check", "--prun", self.prun, "--out", self.folder / "out", "--only", "parity",
                                    "--plans", "ddp"], env=env, stdout=subprocess.DEVNULL)
        hanging = self.folder / "calls.hang"
        while not (hanging.exists() and hanging.read_text().count("\n") == 2):  # both runs on the device
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 128 + signal.SIGTERM)
        for child in hanging.read_text().split():
            self.assertFalse(alive(child), child)
        self.assertEqual(json.loads((self.folder / "out/report.json").read_text())["results"], [])

    def test_what_failed_is_asked_again_when_wanted(self):
        self.parity("off", "--plans", "ddp")
        self.assertEqual(self.parity("", "--plans", "ddp")[0].returncode, 1)  # kept
        self.assertEqual(self.parity("", "--plans", "ddp", "--again")[0].returncode, 0)

    def test_the_doctor_must_name_every_gpu(self):
        done, found = self.check("--only", "doctor")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.by_name(found)["names the GPUs"]["note"], "doctor does not name NVIDIA Fake 2")


class Figures(Machine):
    """The scripts of tools/bench with peers that play: what they print, and what is made of it."""

    def setUp(self):
        super().setUp()
        self.gpus(2)

    def torch(self, step_s, text=""):
        done = json.dumps({"torch": "9.9", "step_s": step_s, "first_loss": 11, "last_loss": 9})
        out = f'print({done!r})' if not text else f"raise SystemExit({text!r})"
        return self.program("torch", f"{PYTHON}import sys\nif '-c' not in sys.argv:\n  {out}\n")

    def figures(self, name, *words, **environment):
        done, found = self.check("--only", "figures", "--check", name, *words, **environment)
        return done, self.by_name(found)

    def test_training_is_compared_with_pytorch(self):
        _, found = self.figures(TRAINING, "--torch", str(self.torch(0.0125)))
        result = found[TRAINING]
        self.assertEqual(result["status"], PASS, result)
        # 64 x 1,024 tokens in 10 ms, 6 x 123.7M + 12 x 12 x 768 x 1,024 FLOPs each, of 1 PFLOP/s.
        self.assertIn(f"{FAST}: 6,553,600 tokens/s, MFU 560.6%; PyTorch 9.9: 5,242,880 tokens/s, MFU 448.5%", result["figure"])
        self.assertIn("1.250 × PyTorch, with the same bits in every run 1.250 ×", result["figure"])
        self.assertEqual([row[0] for row in result["table"]], ["", "prun", FAST, "PyTorch 9.9"])
        runs = [line for line in self.calls.read_text().splitlines() if "gpt2.lua" in line]
        self.assertEqual(["deterministic=0,autotune=1" in line for line in runs], [False, True] * 2)  # two rounds
        text = (self.folder / "out/report.md").read_text()
        self.assertIn(f"| {TRAINING} | at least PyTorch's tokens/s, MFU printed | prun: 6,553,600", text)
        self.assertIn("| prun | 10.00 | 6,553,600 |", text)
        _, found = self.figures(TRAINING, "--fresh", "--torch", str(self.torch(0.009)))
        self.assertEqual(found[TRAINING]["status"], FAIL)

    def test_prun_has_its_figure_where_pytorch_has_none(self):
        _, found = self.figures(TRAINING, "--torch", str(self.torch(0, "no compiler")))  # neither with torch.compile nor without
        self.assertEqual((found[TRAINING]["status"], found[TRAINING]["figure"]), (FAIL, f"{PRUN_ALONE}; 64 samples a step"))
        self.assertIn("no compiler", found[TRAINING]["note"])
        done = json.dumps({"torch": "9.9", "step_s": 0.0125, "last_loss": 9})
        torch = self.program("torch", f"{PYTHON}import sys\nif '--eager' in sys.argv: print({done!r})\nelif '-c' not in sys.argv: raise SystemExit('no gcc')\n")
        _, found = self.figures(TRAINING, "--fresh", "--torch", str(torch))
        self.assertEqual((found[TRAINING]["status"], found[TRAINING]["note"]), (FAIL, "not the PyTorch that was asked for"))
        self.assertIn("PyTorch 9.9 without torch.compile, which failed: no gcc: 5,242,880", found[TRAINING]["figure"])

    def test_a_batch_that_does_not_fit_is_halved_on_both_sides(self):
        torch = self.program("torch", PYTHON + "import sys\nif '-c' in sys.argv: sys.exit()\nb = int(sys.argv[sys.argv.index('--batch') + 1])\n"
                             "if b > 16: raise SystemExit('out of memory: CUDA')\nprint('{\"torch\": \"9.9\", \"step_s\": 0.02, \"last_loss\": 9}')\n")
        done = subprocess.run([sys.executable, TOP / "tools/bench/gpu_train.py", "--prun", self.prun, "--torch", torch, "--rounds", "1", "--context", "8", "--peak", "500"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("16 × 8 tokens a step", done.stdout)
        self.assertEqual(done.stderr.count("trying"), 2)

    def test_host_overhead_is_what_prun_says(self):
        _, found = self.figures("", "--torch", "/nowhere")
        self.assertEqual(list(found), [*BARS, NORMS])
        self.assertEqual(found[TRAINING]["status"], IMPOSSIBLE)
        self.assertIn(f"no PyTorch: /nowhere: No such file or directory (--torch PYTHON); {PRUN_ALONE}", found[TRAINING]["note"])
        self.assertEqual([(found[name]["status"], found[name]["figure"]) for name in (HOST, GAPS)],
                         [(PASS, "12.5 µs (median of 30 steps; nine of ten under 12.5 µs)"), (PASS, "0.40% (median of 30 steps; nine of ten under 0.40%)")])
        self.assertEqual(self.calls.read_text().count("plans/single.lua"), 1)

    def test_kernels_are_held_to_the_best(self):
        rows = [{"group": "gpt2", "what": what, "ours_us": us, "best_us": best, "best": "x", "flops": 1e6, "judged": what != "own", "problem": problem}
                for what, us, best, problem in (("a", 10.2, 10, ""), ("b", 12, 10, ""), ("c", 9, 0, ""), ("own", 20, 10, ""), ("d", 0, 0, "broke"))]
        for chosen, ending, status, note in ((rows[:1] + rows[2:4], "", PASS, ""), (rows, "", FAIL, "gpt2 b 1.20 ×; gpt2 d: broke"),
                                             (rows[:1], "echo cut off >&2; exit 2", FAIL, "exit 2: cut off"),
                                             (rows[2:3], "", FAIL, "cuBLASLt has none of the shapes")):
            self.program("build/bin/cuda_kernel_bench", "#!/bin/sh\n[ \"$1 $2\" = '--family gemm' ] || exit 1\nfor file; do :; done\n"
                                                        f"echo '{json.dumps({'rows': chosen})}' >$file\n{ending}\n")
            _, found = self.figures(PRODUCTS, "--fresh")
            result = found[PRODUCTS]
            self.assertEqual((result["status"], result["note"]), (status, note))
            self.assertEqual(len(result["table"]), 1 + len(chosen))
            if status == PASS:
                self.assertEqual(result["figure"], "1 of 1 shapes hold with deterministic=0,autotune=1, at most 1.020 × (gpt2 a); as it is 1 of 1")

    def test_the_ops_must_run_on_the_real_device(self):
        for text, status in (("echo cuda device: $PRUN_CUDA_PLUGIN", PASS), ("echo the substitute", FAIL), ("echo cuda device: $PRUN_CUDA_PLUGIN; exit 1", FAIL)):
            self.program("build/bin/cuda_agreement_test", f"#!/bin/sh\necho '[  PASSED  ] 11 tests.'\n{text}\n")
            _, found = self.check("--only", "ops", "--fresh")
            result = found["results"][0]
            self.assertEqual(result["status"], status, result)
            self.assertEqual(result["figure"] if status == PASS else "", "11 groups of ops agree" if status == PASS else "")

    def test_the_sanitizer_looks_at_every_group_of_ops(self):
        self.program("build/bin/cuda_agreement_test", "#!/bin/sh\nprintf 'Running main()\\nOps.\\n  A\\n  B\\n  BitsOfTheCpu\\n'\n")
        self.program("bin/compute-sanitizer", '#!/bin/sh\necho "$2 $6" >>$FAKE_CALLS\necho "========= ERROR SUMMARY: 3 errors"\n'
                                              'case $2$6 in memcheck*A) exit 99;; memcheck*|racecheck*) exit 0;; esac\n'
                                              'echo "========= Error: Device not supported"; exit 1\n')
        _, found = self.check("--only", "sanitizers")
        self.assertEqual([(r["status"], r["figure"], r["note"]) for r in found["results"]],
                         [(FAIL, "1 of 2 groups of ops clean", "Ops.A: ERROR SUMMARY: 3 errors"), (PASS, "2 of 2 groups of ops clean", ""),
                          (IMPOSSIBLE, "", "compute-sanitizer: ========= Error: Device not supported")])
        asked = self.calls.read_text().splitlines()
        self.assertEqual({line for line in asked if line.startswith("racecheck")}, {f"racecheck --gtest_filter=Ops.{group}" for group in "AB"})

    def test_collectives_are_held_to_nccl_tests(self):
        for us, status in ((9.9, PASS), (9.0, FAIL)):
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
                self.program(f"peers/{name}_perf", f"#!/bin/sh\necho '# comment'\n"
                             f"echo '  65536  16384  float  sum  -1  {us}  1.0  1.0  0  20.0  1.0  1.0  0'\n")
            _, found = self.figures(COLLECTIVES, "--fresh", "--nccl-tests", str(self.folder / "peers"))
            result = found[COLLECTIVES]
            self.assertEqual(result["status"], status, result)
            self.assertIn("4 sizes, at most", result["figure"])


class Building(Machine):
    """With a cmake and a ninja that play."""

    def build(self, cmake="echo -- fine", ninja="true"):
        self.program("bin/cmake", f"#!/bin/sh\necho cmake >>$FAKE_CALLS\n{cmake}\n")
        self.program("bin/ninja", f'#!/bin/sh\ncase "$*" in *targets*) echo cuda_kernel_bench: phony; exit;; esac\necho ninja "$@" >>$FAKE_CALLS\n{ninja}\n')
        (self.folder / "build/build.ninja").touch()
        return self.check("--only", "build", "--build", str(self.folder / "build"))

    def test_every_call_builds_what_has_changed(self):
        for calls in (1, 2):
            done, found = self.build()
            self.assertEqual([r["status"] for r in found["results"]], [PASS, PASS], done.stdout)
            made = [line for line in self.calls.read_text().splitlines() if line.startswith("ninja")]
            self.assertEqual(len(made), calls)
            self.assertTrue(made[0].endswith("prun plugins devices prun_conform cuda_kernel_bench"), made[0])  # and not what is no target here
        self.assertEqual(done.returncode, 2)  # all well, but no GPU

    def test_what_does_not_build(self):
        done, found = self.build(ninja="echo error: expected a semicolon >&2; exit 1")
        self.assertEqual((done.returncode, found["results"][1]["note"]), (1, "exit 1: error: expected a semicolon"))
        done, found = self.build(cmake="echo '-- device cuda is not built: no CUDA Toolkit'")
        self.assertEqual((done.returncode, found["results"][0]["note"]), (1, "device cuda is not built: no CUDA Toolkit"))


class Parts(Machine):
    def context(self, budget=None):
        options = argparse.Namespace(device="cpu", build=self.folder / "build", out=self.folder / "out", budget=budget, prun=self.prun, plans=[],
                                     small=False)
        return Context(options, {"gpus": [], "problem": "none", "device": "cpu", "about": {}, "environment": {}})

    def ask(self, function, timeout=5, budget=None):
        return perform(self.context(budget), Step("step", "title", lambda _: []), Check("a/b c", function, timeout=timeout))

    def test_a_command_that_hangs_is_stopped_with_what_it_started(self):
        def hang(context):
            done = context.run("sh", "-c", f"sleep 60 & echo $! >{self.folder}/child; wait")
            return Verdict(done.ok, note=done.why())
        start = time.monotonic()
        result = self.ask(hang, timeout=0.5)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual((result.status, result.note), (FAIL, "stopped after 0 s" if result.seconds < 0.5 else "stopped after 1 s"))
        self.assertFalse(alive((self.folder / "child").read_text().strip()))

    def test_the_budget_cuts_a_command_off_without_a_result(self):
        with self.assertRaises(BudgetSpent):
            self.ask(lambda context: context.run("sleep", "60"), timeout=50, budget=0.5)

    def test_a_check_that_is_wrong_itself_is_a_failure(self):
        result = self.ask(lambda context: {}["gone"])
        self.assertEqual((result.status, result.note), (FAIL, "the check failed: KeyError: 'gone'"))

    def test_a_command_that_is_not_there(self):
        result = self.ask(lambda context: Verdict(context.run("/nowhere/x").ok, note="n"))
        self.assertEqual(result.status, FAIL)
        self.assertIn("No such file", pathlib.Path(result.log).read_text())

    def test_the_table_survives_what_programs_say(self):
        machine, step = {"device": "cuda", "gpus": ["G"], "problem": "", "about": {"GPUs": "1"}, "small": False}, Step("s", "t", None)
        text = report.markdown(machine, [Result("s", "n", FAIL, note="a|b\nc", command="x | y")], [("s", "m")], [step], {"n": "1 | 2", "m": "3"})
        self.assertIn("| n | **FAIL**: a\\|b c |  |  | 0 | `x \\| y` |", text)
        self.assertIn("| n | 1 \\| 2 |  | **no**: a\\|b c |\n| m | 3 |  | not asked yet |", text)  # of the figures

    def test_an_archive_runs_elsewhere(self):
        archive = self.folder / "packed.tar"
        done, _ = self.check("--pack", str(archive), prun=PRUN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        subprocess.run(["tar", "xf", archive, "-C", self.folder], check=True)
        prun = self.folder / "gpu-check/build/gpu/bin/prun"
        libraries = {path.name for path in (prun.parent.parent / "lib/needed").iterdir()}
        self.assertTrue(any(name.startswith("liblua") for name in libraries), libraries)
        self.assertFalse(any(name.startswith(("libc.so", "libstdc++", "libcublas")) for name in libraries), libraries)
        self.assertRegex(done.stdout, r"it needs GLIBC 2\.\d+ and GLIBCXX 3\.\d+\.\d+ or newer there")
        done = subprocess.run([self.folder / "gpu-check/tools/gpu-check", "--prun", prun, "--device", "cpu", "--only", "parity", "--plans", "single",
                               "--ranks", "1", "--budget", "1"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (75, ""))
        ran = subprocess.run([prun, "plans/ddp.lua", "--nproc", "2", *(word for setting in TINY for word in ("--set", setting))],
                             capture_output=True, text=True, cwd=self.folder / "gpu-check")
        self.assertEqual(ran.returncode, 0, ran.stderr)  # the transports are those of the archive
        self.assertIn("over shm", ran.stdout + ran.stderr)
        plans = subprocess.run([prun, "plans", "--json"], capture_output=True, text=True, cwd=self.folder)
        self.assertIn("zero3", plans.stdout, plans.stderr)

    def test_libraries_and_headers_beside_pytorch_are_found(self):
        packages = self.folder / "site/nvidia"
        for name in ("cudnn/lib/libcudnn.so.9", "nccl/lib/libnccl.so.2", "nccl/include/nccl.h", "cufft/lib/libcufft.so.12"):
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            (packages / name).touch()
        found = libraries.packages(self.program("python", f"#!/bin/sh\necho; echo {self.folder}/site\n"))
        environment, added = libraries.environment(found)
        self.assertEqual(added, [f"{packages}/cudnn/lib", f"{packages}/nccl/lib"])
        self.assertTrue(environment["LD_LIBRARY_PATH"].endswith(":".join(added)))
        self.assertEqual(libraries.headers(found), {"NCCL_INCLUDE_DIR": f"{packages}/nccl/include"})
        self.assertEqual(libraries.environment(libraries.packages("/nowhere/python")), ({}, []))

    def test_overlap_in_a_trace(self):
        self.assertEqual(trace.overlap_us([(0, 10), (20, 30)], [(5, 22), (25, 26), (29, 40)]), 5 + 2 + 1 + 1)
        self.assertEqual(trace.overlap_us([(0, 10)], [(10, 20)]), 0)

    def test_usage(self):
        for words, said in ((["--only", "parety"], "there is no step 'parety' (one of: build, doctor"), (["--ranks", "0"], "--ranks wants whole numbers"),
                            (["--device", "tpu"], "invalid choice")):
            done, _ = self.check(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)
        done, _ = self.check(prun="/nowhere/prun")
        self.assertIn("--prun: /nowhere/prun is not there", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
