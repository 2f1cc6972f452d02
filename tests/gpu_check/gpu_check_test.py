#!/usr/bin/env python3
"""tools/gpu-check: parts, budgets, results and remedies, with the CPU device and with a simulated machine of GPUs.

Nothing here runs on a GPU. Usage: gpu_check_test.py PRUN TOP
"""
# ruff: noqa: I001  (played.py makes gpu_check importable)
import argparse
import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import unittest.mock

from played import PRUN, TOP, Machine, alive, run_tests

from gpu_check import libraries, remedies, report, trace, warm
from gpu_check.check import Check, Part, Verdict, perform
from gpu_check.context import Context
from gpu_check.main import PARTS, parse
from gpu_check.results import CUT, FAIL, IMPOSSIBLE, PASS, NotPossible, Result
from gpu_check.run import Run, files_to_save


class OnTheCpu(Machine):
    def test_real_plans_against_the_reference(self):
        done, found = self.check("--device", "cpu", "--only", "parity,parity-rest,trace", "--plans", "ddp,collectives", "--ranks", "2", "--small", prun=PRUN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = self.by_name(found)
        self.assertEqual(set(results), {"ddp, 2 ranks, auto, f32", "collectives, 2 ranks, auto, f32", "zero3 on two ranks"})
        self.assertEqual({r["status"] for r in results.values()}, {PASS})
        self.assertRegex(results["ddp, 2 ranks, auto, f32"]["figure"], r"^\d\.\de(-\d+|\+00) over 5 steps$")
        self.assertIn("nothing here ran on a GPU", done.stdout)


class NoGpu(Machine):
    def test_the_report_begins_with_it(self):
        self.gpus(0)
        done, found = self.check("--ranks", "1,2", FAKE_DRIVER="none")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("Nothing here ran on a GPU: nvidia-smi finds none.", done.stdout)
        self.assertIn("**Nothing here ran on a GPU", (self.folder / "out/report.md").read_text())
        asked = {name for name, r in self.by_name(found).items() if r["status"] != IMPOSSIBLE}
        self.assertEqual(asked, {"prun doctor", "no driver", "a device that does not exist"})
        self.assertIn("no GPU can be reached", self.by_name(found)["ddp, 2 ranks sharing GPUs, shm, f32"]["note"])
        self.assertIn("ops", self.lines(done))

    def test_hidden_gpus_are_named(self):
        self.gpus(2)
        done, _ = self.check("--only", "ops", CUDA_VISIBLE_DEVICES="")
        self.assertIn("CUDA_VISIBLE_DEVICES='' hides every GPU", done.stdout)


class OnTwoGpus(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(2)

    def parity(self, mode, *words):
        return self.check("--only", "parity,parity-rest", "--ranks", "1,2,4", *words, FAKE_RUN=mode)

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
        self.assertEqual(calls.count("ddp.lua --nproc 2 --device cuda --transport"), 4)  # twice over each transport

    def test_ranks_share_where_there_are_more_than_gpus(self):
        self.gpus(1)
        _, found = self.parity("", "--plans", "ddp")
        self.assertIn("ddp, 2 ranks sharing GPUs, shm, f32", self.by_name(found))
        self.assertIn("--transport shm --ranks-per-device 2", self.calls.read_text())

    @unittest.mock.patch("gpu_check.remedies.FIRST_TRIES", 0)
    def test_failures_have_reasons_of_their_own(self):
        for mode, words in (("off", "instead of"), ("drift", "two runs differ from step 0 on"), ("nan", "a loss is not a number"),
                            ("crash", "exit 10: prun: rank 0 was killed by SIGSEGV")):
            done, found = self.parity(mode, "--plans", "ddp", "--fresh")
            self.assertEqual(done.returncode, 1, mode)
            failed = [r for r in found["results"] if r["status"] == FAIL]
            self.assertEqual(len(failed), 3, mode)  # a failure does not stop the others
            for result in failed:
                self.assertIn(words, result["note"])
                self.assertTrue(pathlib.Path(result["log"]).exists())

    def test_a_prun_that_does_not_start_is_a_failure(self):
        self.prun.write_text("#!/bin/sh\necho no >&2; exit 127\n")
        done, found = self.parity("")
        self.assertEqual((done.returncode, [(r["part"], r["name"], r["note"]) for r in found["results"]]),
                         (1, [(part, "prun plans", "exit 127: no") for part in ("parity", "parity-rest")]))

    def test_errors_that_users_make(self):
        done, found = self.check("--only", "bad-input")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual([r["name"] for r in found["results"] if r["status"] != PASS], ["no driver"])
        self.prun.write_text(self.prun.read_text().replace("leave(3, ", "leave(1, ").replace("made a NaN", "did something"))
        done, found = self.check("--only", "bad-input")
        self.assertEqual(done.returncode, 1)
        self.assertIn("asked again because of another prun", done.stdout)
        notes = {name: r["note"] for name, r in self.by_name(found).items() if r["status"] == FAIL}
        self.assertIn("should end with 3", notes["out of memory, said before launch"])
        self.assertIn("the message lacks nan|inf|finite", notes["a NaN under --check-finite"])

    def test_a_signal_ends_all_commands_and_the_report_is_written(self):
        process = subprocess.Popen([sys.executable, "-S", TOP / "tools/gpu-check", "--prun", self.prun, "--out", self.folder / "out", "--only", "parity",
                                    "--plans", "ddp", "--ranks", "1,2"], env=self.environment(FAKE_RUN="hang"), stdout=subprocess.DEVNULL)
        hanging = self.folder / "calls.hang"
        while not (hanging.exists() and hanging.read_text().count("\n") == 6):  # two runs of each of three concurrent checks
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 128 + signal.SIGTERM)
        for child in hanging.read_text().split():
            self.assertFalse(alive(child), child)
        self.assertEqual(json.loads((self.folder / "out/report.json").read_text())["results"], [])

    @unittest.mock.patch("gpu_check.remedies.FIRST_TRIES", 0)
    def test_a_failed_check_is_asked_again_when_wanted(self):
        self.parity("off", "--plans", "ddp")
        self.assertEqual(self.parity("", "--plans", "ddp")[0].returncode, 1)  # the result is stored
        self.assertEqual(self.parity("", "--plans", "ddp", "--again")[0].returncode, 0)

    def test_the_doctor_must_name_every_gpu(self):
        done, found = self.check("--only", "doctor")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.by_name(found)["names the GPUs"]["note"], "doctor does not name NVIDIA Fake 2")


class Calls(Machine):
    """Parts defined by the test, which controls when the budget ends."""

    def run_of(self, *parts, **options):
        words = ["--prun", str(self.prun), "--out", str(self.folder / "out"), "--device", "cpu"]
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        run = Run(parse(words), parts)
        run.options.only = [part.name for part in parts]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = run.finish()
        return status, json.loads((self.folder / "out/report.json").read_text()), out.getvalue()

    def part(self, name, *asks, **more):
        return Part(name, "", lambda _: [Check(f"{name} {i}", ask, least=0.1) for i, ask in enumerate(asks)], uses=(), **more)

    def test_a_cut_check_keeps_its_figure_and_is_asked_again(self):
        asked = []

        def cut(context):
            context.budget_end = time.monotonic() + 0.3
            done = context.run("sleep", "60")
            return Verdict(done.ok, "2 of 4 rows", "4 rows", done.why(), [["row"], ["1"], ["2"]])

        def without_a_figure(context):
            context.budget_end = 0
            return Verdict(context.run("sleep", "60").ok)

        def well(_context):
            asked.append(1)
            return Verdict(True, "4 rows")
        status, found, _ = self.run_of(self.part("first", well, cut, without_a_figure))
        self.assertEqual((status, found["left"]), (75, ["first: first 1", "first: first 2"]))
        results = self.by_name(found)
        self.assertEqual((results["first 1"]["status"], results["first 1"]["figure"], len(results["first 1"]["table"])), (CUT, "2 of 4 rows", 3))
        self.assertNotIn("first 2", results)
        self.assertIn("cut off, asked again by the next call", (self.folder / "out/report.md").read_text())
        status, found, _ = self.run_of(self.part("first", well, well, well))
        self.assertEqual((status, [r["figure"] for r in found["results"]]), (0, ["4 rows"] * 3))
        self.assertEqual(len(asked), 3)  # the first one once

    def test_a_budget_is_left_to_later_calls_and_they_finish_it(self):
        def last_in_time(context):
            run_context.append(context)
            return Verdict(True)
        run_context = []
        with unittest.mock.patch("gpu_check.run.time") as clock:
            now = [0.0]
            clock.monotonic.side_effect = lambda: now[0]

            def slow(context):
                now[0] += 1e9
                return last_in_time(context)
            status, found, _ = self.run_of(self.part("first", slow, last_in_time), self.part("second", last_in_time), budget=60)
        self.assertEqual((status, found["left"]), (75, ["first: first 1", "second: all of it"]))
        self.assertIn("## Not reached yet", (self.folder / "out/report.md").read_text())
        status, found, _ = self.run_of(self.part("first", slow, last_in_time), self.part("second", last_in_time), budget=60)
        self.assertEqual((status, found["complete"], len(run_context)), (0, True, 3))

    def test_a_part_has_a_limit_and_the_next_one_runs(self):
        def slow(context):
            return Verdict(context.run("sleep", "60").ok)
        start = time.monotonic()
        status, found, out = self.run_of(self.part("first", slow, limit=1.1), self.part("second", lambda _: Verdict(True, "fine")), budget=60)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual((status, found["left"], [r["name"] for r in found["results"]]), (75, ["first: first 0"], ["second 0"]))
        self.assertRegex(out, r"(?m)^ +\d s  first         0 pass, 1 not reached in \d s of 1$")
        self.assertRegex(out, r"(?m)^ +\d s  second        1 pass in 0 s of 120: second 0: fine$")

    def test_files_are_saved_after_every_part(self):
        saved = self.folder / "saved"

        def look(_context):
            with tarfile.open(saved / "files.tar.gz") as tar:
                names = tar.getnames()
            return Verdict(json.loads((saved / "results.json").read_text())["results"][0]["figure"] == "1", " ".join(names))
        status, found, _ = self.run_of(self.part("first", lambda context: Verdict(context.run("true").ok, "1")), self.part("second", look), save=saved)
        self.assertEqual(status, 0)
        self.assertEqual(found["results"][1]["figure"], "logs/first_first_0.log report.json report.md results.json")
        self.assertEqual({path.name for path in saved.iterdir()}, {"files.tar.gz", "report.md", "results.json"})

    def test_runs_that_failed_are_saved_and_weights_are_not(self):
        for name in ("out/logs/a.log", "out/scratch/weights", "runs/old/log.txt", "runs/new/log.txt"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()
        os.utime(self.folder / "runs/old", (0, 0))
        names = [str(name) for _, name in files_to_save(self.folder / "out", self.folder / "runs", 1)]
        self.assertEqual(names, ["logs/a.log", "runs/new/log.txt"])

    def test_checks_of_a_part_run_at_once(self):
        barrier = threading.Barrier(3, timeout=20)

        def meet(_context):
            barrier.wait()
            return Verdict(True)
        self.assertEqual(self.run_of(self.part("first", meet, meet, meet, together=3))[0], 0)

    def test_a_question_that_was_not_possible_is_asked_again(self):
        def impossible(_context):
            raise NotPossible("no compute-sanitizer")
        self.run_of(self.part("first", impossible))
        self.assertEqual(self.run_of(self.part("first", lambda _: Verdict(True)))[1]["counts"], {PASS: 1, FAIL: 0, IMPOSSIBLE: 0})


class Remedies(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(1)

    def test_a_failed_run_says_what_cures_it(self):
        for mode, cure in (("cudnn", "cudnn=0"), ("graphs", "no graphs"), ("blocking", "CUDA_LAUNCH_BLOCKING=1")):
            done, found = self.check("--only", "parity", "--check", "f32", "--plans", "single", "--ranks", "1", "--fresh", FAKE_RUN=mode)
            self.assertEqual(done.returncode, 1, mode)
            result = self.by_name(found)["single, 1 rank, auto, f32"]
            self.assertEqual((result["status"], result["cured"]), (FAIL, [cure]))
            self.assertIn(f"rank 0 was killed by SIGSEGV; passes with {cure}", self.lines(done)["parity"])
            self.assertIn(f"passes with {cure}", (self.folder / "out/report.md").read_text())

    def test_a_failure_that_nothing_cures(self):
        done, found = self.check("--only", "parity", "--check", "f32", "--plans", "single", "--ranks", "1", FAKE_RUN="crash")
        result = self.by_name(found)["single, 1 rank, auto, f32"]
        self.assertEqual((result["cured"], result["tried"]), ([], ["a second try", "cudnn=0", "no graphs", "CUDA_LAUNCH_BLOCKING=1"]))
        self.assertIn("fails also with a second try, cudnn=0, no graphs, CUDA_LAUNCH_BLOCKING=1", self.lines(done)["parity"])

    def test_a_flaky_check_passes_in_a_second_try(self):
        self.agreement("Rows", f"[ -e {self.folder}/tried ] || {{ touch {self.folder}/tried; exit 1; }}\necho cuda device: $PRUN_CUDA_PLUGIN; echo '[  PASSED  ] 1 test.'")
        done, found = self.check("--only", "ops")
        self.assertEqual((done.returncode, found["results"][0]["status"], found["results"][0]["cured"], found["results"][0]["tried"]),
                         (1, FAIL, ["a second try"], ["a second try"]))
        self.assertIn("passes with a second try", self.lines(done)["ops"])

    def test_a_group_of_ops_that_cudnn_spoils(self):
        self.agreement("Rows Attention", "case $group$PRUN_CUDA_OPTIONS in Attention|Attentiondet*) echo 'x.cc:3: Failure'; echo 'off by 2'; echo '[  FAILED  ]'; exit 1;; esac\n"
                       "echo cuda device: $PRUN_CUDA_PLUGIN; echo '[  PASSED  ] 1 test.'")
        done, found = self.check("--only", "ops")
        results = self.by_name(found)
        self.assertEqual({name: r["status"] for name, r in results.items()},
                         {"Rows": PASS, "Attention": FAIL, "Attention, cudnn=0": PASS, "Attention, deterministic=0": FAIL})
        self.assertEqual((results["Attention"]["note"], results["Attention"]["cured"]), ("off by 2", ["cudnn=0"]))
        self.assertIn("FAIL Attention: off by 2; passes with cudnn=0", self.lines(done)["ops"])

    def test_options_of_a_command_stay_and_a_remedy_wins(self):
        self.assertEqual(remedies.with_option(["x", "--o", "a=1,cudnn=1", "y"], "--o", "cudnn=0"), ["x", "--o", "a=1,cudnn=0", "y"])
        self.assertEqual(remedies.with_option(["x"], "--o", "cudnn=0"), ["x", "--o", "cudnn=0"])
        self.assertEqual(remedies.joined("", "cudnn=0"), "cudnn=0")


class Keys(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(1)
        self.agreement("A")
        self.words = ["--only", "ops,parity", "--plans", "single", "--ranks", "1"]

    def asked(self, **environment):
        """Returns the parts that ran instead of using stored results, and the completed gpu-check."""
        done, _ = self.check(*self.words, **environment)
        return set(self.lines(done)), done

    def test_a_rebuilt_prun_does_not_forget_kernel_tests(self):
        self.assertEqual(self.asked()[0], {"ops", "parity"})
        self.assertEqual(self.asked()[0], set())
        with open(self.prun, "a") as file:
            file.write("# rebuilt\n")
        parts, done = self.asked()
        self.assertEqual(parts, {"parity"})
        self.assertIn("asked again because of another prun", done.stdout)

    def test_a_rebuilt_plugin_and_another_driver_ask_all_again(self):
        self.asked()
        (self.folder / "build/lib/prun/devices/cuda.so").write_text("rebuilt")
        parts, done = self.asked()
        self.assertEqual(parts, {"ops", "parity"})
        self.assertIn("asked again because of another cuda", done.stdout)
        self.program("bin/nvidia-smi", (self.folder / "bin/nvidia-smi").read_text().replace("580.1", "590.2"))
        parts, done = self.asked()
        self.assertEqual(parts, {"ops", "parity"})
        self.assertIn("asked again because of another driver", done.stdout)

    def test_a_result_of_other_files_is_not_in_the_report(self):
        self.asked()
        (self.folder / "build/lib/prun/devices/cuda.so").write_text("rebuilt")
        _, found = self.check("--only", "doctor")
        self.assertEqual({r["part"] for r in found["results"]}, {"doctor"})

    def test_kept_results_are_not_asked_again(self):
        self.asked()
        kept = self.folder / "results/nvidia-fake.json"
        done, _ = self.check("--keep", str(kept))
        self.assertEqual((done.returncode, done.stdout), (0, f"{kept}: 3 results, 3 of them from {self.folder}/out/results.json\n"))
        results = json.loads(kept.read_text())["results"]
        self.assertEqual([(r["part"], r["name"], "log" in r, r["key"]["driver"]) for r in results],
                         [("ops", "A", False, "580.1"), *(("parity", f"single, 1 rank, auto, {dtype}", False, "580.1") for dtype in ("bf16", "f32"))])
        shutil.rmtree(self.folder / "out")
        with unittest.mock.patch("gpu_check.keep.files", lambda _top: [kept]):
            self.assertEqual(self.asked()[0], set())

    def test_results_that_no_gpu_gave_are_not_kept(self):
        target = self.folder / "kept.json"
        done, _ = self.check("--keep", str(target))
        self.assertEqual(done.returncode, 2)
        self.assertIn("out/results.json is not there; --out names the folder of a run", done.stderr)
        self.gpus(0)
        self.check("--only", "doctor", FAKE_DRIVER="none")
        done, _ = self.check("--keep", str(target))
        self.assertIn("has results that no GPU gave (doctor: prun doctor)", done.stderr)
        self.gpus(1)
        self.check("--only", "doctor", "--small")
        done, _ = self.check("--keep", str(target))
        self.assertIn("was made with --small: its figures mean nothing", done.stderr)
        (self.folder / "out/results.json").write_text("{}")
        done, _ = self.check("--keep", str(target))
        self.assertEqual((done.returncode, target.exists()), (2, False))
        self.assertIn("holds no results of tools/gpu-check", done.stderr)


class Warm(Machine):
    def context(self, gpus, folder):
        return argparse.Namespace(device="cuda", gpus=gpus, environment={"LD_LIBRARY_PATH": str(folder)})

    def test_a_context_of_each_gpu_stays_open_until_the_end(self):
        source, log = self.folder / "driver.c", self.folder / "log"
        source.write_text(f"""#include <stdio.h>
static void note(const char* what, int n) {{ FILE* f = fopen("{log}", "a"); fprintf(f, "%s %d\\n", what, n); fclose(f); }}
int cuInit(unsigned flags) {{ note("init", (int)flags); return 0; }}
int cuDevicePrimaryCtxRetain(void** made, int device) {{ note("retain", device); *made = made; return 0; }}
""")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.folder / "libcuda.so.1", source], check=True)
        with unittest.mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(self.folder)):
            process = warm.start(self.context(2, "/nowhere/nvidia/cublas/lib"))
        self.addCleanup(process.kill)
        self.assertEqual(log.read_text(), "init 0\nretain 0\nretain 1\n")  # before it returns
        self.assertIsNone(process.poll())
        warm.stop(process)
        self.assertEqual(process.returncode, 0)

    def test_it_ends_with_gpu_check_and_needs_no_driver(self):
        process = warm.start(self.context(1, "/nowhere"))
        self.assertIsNone(process.poll())
        self.addCleanup(process.stdout.close)
        process.stdin.close()  # as if gpu-check were killed
        self.assertEqual(process.wait(timeout=20), 0)
        self.assertIsNone(warm.start(self.context(0, "/nowhere")))


class Parts(Machine):
    def context(self, budget=None):
        options = argparse.Namespace(device="cpu", build=self.folder / "build", out=self.folder / "out", budget=budget, prun=self.prun, small=False)
        return Context(options, {"gpus": [], "problem": "none", "device": "cpu", "about": {}, "environment": {}})

    def ask(self, function, timeout=5, budget=None):
        return perform(self.context(budget), Part("part", "title", lambda _: []), Check("a/b c", function, timeout=timeout))

    def test_a_command_that_hangs_is_stopped_with_what_it_started(self):
        def hang(context):
            done = context.run("sh", "-c", f"sleep 60 & echo $! >{self.folder}/child; wait")
            return Verdict(done.ok, note=done.why())
        start = time.monotonic()
        result = self.ask(hang, timeout=0.5)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual((result.status, result.note), (FAIL, "stopped after 0 s" if result.seconds < 0.5 else "stopped after 1 s"))
        self.assertFalse(alive((self.folder / "child").read_text().strip()))

    def test_the_budget_cuts_a_command_off(self):
        result = self.ask(lambda context: Verdict(context.run("sleep", "60").ok, "half"), timeout=50, budget=0.5)
        self.assertEqual((result.status, result.figure), (CUT, "half"))

    def test_a_faulty_check_is_a_failure(self):
        result = self.ask(lambda context: {}["gone"])
        self.assertEqual((result.status, result.note), (FAIL, "the check failed: KeyError: 'gone'"))

    def test_a_command_that_is_not_there(self):
        result = self.ask(lambda context: Verdict(context.run("/nowhere/x").ok, note="n"))
        self.assertEqual(result.status, FAIL)
        self.assertIn("No such file", pathlib.Path(result.log).read_text())

    def test_the_table_survives_the_output_of_programs(self):
        machine, part = {"device": "cuda", "gpus": ["G"], "problem": "", "about": {"GPUs": "1"}, "small": False}, Part("s", "t", None)
        text = report.markdown(machine, [Result("s", "n", FAIL, note="a|b\nc", command="x | y")], [("s", "m")], [part], {"n": "1 | 2", "m": "3"})
        self.assertIn("| n | **FAIL**: a\\|b c |  |  | 0 | `x \\| y` |", text)
        self.assertIn("| n | 1 \\| 2 |  | **no**: a\\|b c |\n| m | 3 |  | not asked yet |", text)  # figures

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
        for info in ("nvidia_cublas-13.0.0.19.dist-info", "nvidia_cudnn_cu13-9.19.0.56.dist-info", "nvidia_cufft-1.dist-info"):
            (self.folder / "site" / info).mkdir()
        for version in ("cublas 13.0.0.19", "cudnn 9.19.0.56"):
            self.assertIn(version, libraries.versions(found))
        self.assertNotIn("cufft", libraries.versions(found))

    def test_overlap_in_a_trace(self):
        self.assertEqual(trace.overlap_us([(0, 10), (20, 30)], [(5, 22), (25, 26), (29, 40)]), 5 + 2 + 1 + 1)
        self.assertEqual(trace.overlap_us([(0, 10)], [(10, 20)]), 0)

    def test_usage(self):
        for words, message in ((["--only", "parety"], "there is no part 'parety' (one of: build, doctor"), (["--ranks", "0"], "--ranks must be whole numbers"),
                               (["--device", "tpu"], "invalid choice"), (["--budget", "59"], "59 s are too few: the first part alone may take 60 s"),
                               (["--budget", "nan"], "nan s are too few")):
            done, _ = self.check(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)
        done, _ = self.check(prun="/nowhere/prun")
        self.assertIn("--prun: /nowhere/prun is not there", done.stderr)

    def test_parts_are_in_order_of_value(self):
        self.assertEqual([part.name for part in PARTS][:15],
                         ["build", "doctor", "ops", "parity", "parity-rest", "models", "gpt2", "pytorch", "kernels", "variants", "generation",
                          "nccl-shared", "bad-input", "memcheck", "racecheck"])


if __name__ == "__main__":
    run_tests()
