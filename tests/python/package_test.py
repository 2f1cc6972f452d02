#!/usr/bin/env python3
"""The package prun (tools/python): runs, answers, exceptions, signals. Needs no packages; the weights' tests are in
weights_test.py. Usage: package_test.py PRUN
"""
import contextlib
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
os.environ["PRUN_COMMAND"] = os.path.abspath(sys.argv[1])
sys.path[:0] = [str(TOP / "tools/python"), str(TOP / "tests/python")]
import prun  # noqa: E402
from processes import descendants, ends  # noqa: E402
from prun.command import option_words  # noqa: E402
from prun.errors import BY_EXIT_CODE, error_of  # noqa: E402
from prun.magic import curve, options_of  # noqa: E402

DDP = TOP / "plans/ddp.lua"
SMALL = {"layers": 1, "width": 32, "batch": 8}
TEXT = 'local prun = require "prun"\n'


def small(steps, **more):
    return {"nproc": 2, "set": {**SMALL, "steps": steps}, **more}


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)  # failed runs keep a folder here


class Runs(Base):
    def test_import_needs_the_standard_library_alone(self):
        code = ("import sys, prun; bad = {'numpy', 'torch', 'safetensors', 'IPython'} & set(sys.modules); "
                "assert not bad, bad; print(prun.__doc__.split()[0])")
        done = subprocess.run([sys.executable, "-c", code], cwd=TOP / "tools/python", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "prun\n"), done.stderr)

    def test_rows(self):
        seen = []
        rows = prun.run(DDP, on_step=seen.append, **small(4))
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4])
        self.assertEqual(rows, seen)
        self.assertGreater(rows[0]["loss"], rows[3]["loss"])
        self.assertEqual(rows[3]["tokens"], 4 * rows[0]["tokens"])

    def test_rows_are_columns_for_pandas(self):
        """Each value is a number, so that pandas.DataFrame(rows) has one column per name and no objects."""
        rows = prun.run(DDP, **small(2))
        self.assertEqual({type(value) for row in rows for value in row.values()} - {int, float}, set())
        columns = {name: [row.get(name) for row in rows] for name in rows[0]}
        self.assertEqual(set(map(len, columns.values())), {2})
        self.assertTrue(all(set(row) == set(columns) for row in rows))

    def test_on_step_stops_with_a_checkpoint(self):
        rows = prun.run(DDP, on_step=lambda row: row["step"] < 3, checkpoint="kept", **small(20000))
        self.assertLess(len(rows), 10000)
        self.assertEqual(len(list(pathlib.Path("kept").glob("step_*"))), 1)
        more = prun.run(DDP, checkpoint="kept", resume="auto", **small(rows[-1]["step"] + 2))
        self.assertEqual([row["step"] for row in more], [rows[-1]["step"] + 1, rows[-1]["step"] + 2])

    def test_on_step_stops_without_a_checkpoint(self):
        self.assertLess(len(prun.run(DDP, on_step=lambda row: False, **small(20000))), 10000)

    def test_text_is_a_plan(self):
        rows = prun.run(DDP.read_text(), **small(2))
        self.assertEqual(len(rows), 2)

    def test_runs_from_another_thread(self):
        rows = []
        thread = threading.Thread(target=lambda: rows.extend(prun.run(DDP, **small(2))))
        thread.start()
        thread.join()
        self.assertEqual(len(rows), 2)

    def test_exception_in_on_step_ends_the_job(self):
        def fails(row):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            prun.run(DDP, on_step=fails, **small(20000))
        self.assertEqual(descendants(os.getpid()), [])

    def test_restart_repeats_no_row(self):
        rows = prun.run(DDP, checkpoint="kept", checkpoint_every=2, max_restarts=1, chaos="kill:rank=1@step=4", **small(6))
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5, 6])


class Failures(Base):
    def test_plan_error_has_the_place(self):
        with self.assertRaises(prun.PlanError) as caught:
            prun.run(DDP, nproc=3, set={"batch": 8})
        error = caught.exception
        self.assertEqual((pathlib.Path(error.file), error.exit_code), (DDP, 3))
        self.assertIn("prun.data", DDP.read_text().splitlines()[error.line - 1])
        self.assertIn("not divisible by the 3 ranks", str(error))

    def test_crashed_rank(self):
        with self.assertRaises(prun.RankFailed) as caught:
            prun.run(DDP, chaos="kill:rank=1@step=3", **small(6))
        error = caught.exception
        self.assertEqual((error.rank, error.exit_code, error.file), (1, 10, str(DDP)))
        self.assertGreater(error.line, 0)
        self.assertIn("adamw", error.op)
        self.assertIn("SIGKILL", str(error))
        self.assertEqual([row["step"] for row in error.rows], [1, 2])
        self.assertTrue(pathlib.Path(error.run, "failure.json").is_file(), error.run)

    def test_non_finite(self):
        with self.assertRaises(prun.NonFinite) as caught:
            prun.run(DDP, chaos="nan:rank=1@step=2", check_finite=True, **small(4))
        self.assertEqual(caught.exception.rank, 1)

    def test_usage(self):
        with self.assertRaisesRegex(prun.UsageError, "there is no option --bogus"):
            prun.run(DDP, bogus=3)
        with self.assertRaisesRegex(prun.UsageError, "missing.lua"):
            prun.run("missing.lua")
        with self.assertRaisesRegex(prun.UsageError, "rows of metrics"):
            prun.run(DDP, metrics="-")
        with self.assertRaisesRegex(prun.UsageError, "a dict of names and values"):
            prun.run(DDP, set="steps=3")

    def test_no_command(self):
        code = "import prun; prun.check('x.lua')"
        done = subprocess.run([sys.executable, "-c", code], cwd=TOP / "tools/python", capture_output=True, text=True,
                              env={**os.environ, "PRUN_COMMAND": "/nowhere/prun"})
        self.assertIn("UsageError: there is no prun command at PRUN_COMMAND=/nowhere/prun", done.stderr)

    def package_in(self, folder):
        """Copies the Python files of the package, as an installed tree without its command has them."""
        shutil.copytree(TOP / "tools/python/prun", folder / "prun", ignore=shutil.ignore_patterns("__pycache__"))
        return {name: value for name, value in os.environ.items() if name != "PRUN_COMMAND"}

    def other_prun(self, folder):
        """Returns a PATH on which prun is a program of another version."""
        folder.mkdir()
        (folder / "prun").write_text("#!/bin/sh\necho '{\"prun\": \"9.9.9\"}'\n")
        (folder / "prun").chmod(0o755)
        return f"{folder.resolve()}:{os.environ['PATH']}"

    def test_a_prun_on_path_of_another_version_is_not_used(self):
        here = pathlib.Path.cwd()
        environment = self.package_in(here)
        environment["PATH"] = path = self.other_prun(here / "other")
        code = "import prun; print(prun.__version__)"
        done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, env=environment)
        self.assertIn(f"UsageError: there is no prun command at {here}/prun/bin: install the package with pip install; "
                      f"{here}/other/prun on PATH is not used, because it may be of another version", done.stderr)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
            **os.environ, "PATH": path, "PYTHONPATH": str(here)})
        self.assertEqual(done.stdout, f"{prun.version()}\n", done.stderr)
        self.assertNotEqual(prun.version(), "9.9.9")

    def test_a_tree_copied_to_an_older_system(self):
        here = pathlib.Path.cwd()
        environment = self.package_in(here)
        found = os.confstr("CS_GNU_LIBC_VERSION")
        for needed, message in (("2.999", f"ImportError: prun in {here}/prun needs glibc 2.999 or newer, and this system "
                                          f"has {found}: build prun here, pip install . in its source tree"),
                                (found.removeprefix("glibc "), ""), ("2.4", "")):
            (here / "prun/glibc_version").write_text(needed + "\n")
            done = subprocess.run([sys.executable, "-c", "import prun"], capture_output=True, text=True, env=environment)
            self.assertEqual(done.returncode, 1 if message else 0, done.stderr)
            self.assertEqual(done.stderr.strip().rsplit("\n", 1)[-1], message)

    def test_command_for_a_newer_system(self):
        script = pathlib.Path("prun")
        script.write_text("#!/bin/sh\necho \"prun: /lib/libc.so.6: version \\`GLIBC_2.38' not found\" >&2\nexit 1\n")
        script.chmod(0o755)
        code = "import prun; prun.version()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
            **os.environ, "PRUN_COMMAND": str(script.resolve()), "PYTHONPATH": str(TOP / "tools/python")})
        self.assertIn("UsageError: this system's C library is older", done.stderr)

    def test_a_type_per_exit_code(self):
        table = (TOP / "README.md").read_text().split("| code |")[1].split("\n\n")[0]
        codes = {int(line.split("|")[1]) for line in table.splitlines()[2:] if line.split("|")[1].strip().isdigit()}
        self.assertEqual(codes - {0}, set(BY_EXIT_CODE))
        for code, kind in BY_EXIT_CODE.items():
            self.assertIs(type(error_of(code, {}, "prun: a failure")), kind)
        self.assertEqual(error_of(137, {}, "").signal, signal.SIGKILL)


class Signals(Base):
    SCRIPT = ("import prun, signal, sys\n"
              "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job of a script's background ignores it
              "def on_step(row):\n"
              "    if row['step'] == 3: print('runs', flush=True)\n"
              f"prun.run({str(DDP)!r}, nproc=2, set=dict(layers=1, width=32, batch=8, steps=200000), on_step=on_step,\n"
              "         checkpoint='kept')\n")

    def start(self):
        process = subprocess.Popen([sys.executable, "-c", self.SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, "PYTHONPATH": str(TOP / "tools/python")})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "runs\n")
        ranks = descendants(process.pid)
        self.assertGreaterEqual(len(ranks), 3)  # the command and two ranks
        return process, ranks

    def test_ctrl_c_stops_with_a_checkpoint(self):
        process, ranks = self.start()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(30), -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", process.stderr.read())
        self.assertTrue(all(ends(pid, 5) for pid in ranks))
        self.assertEqual(len(list(pathlib.Path("kept").glob("step_*"))), 1)

    def test_job_ends_with_a_killed_interpreter(self):
        process, ranks = self.start()
        process.kill()
        process.wait()
        self.assertTrue(all(ends(pid, 5) for pid in ranks))

    def test_job_in_a_long_step_ends_with_a_killed_interpreter(self):
        """No row is written meanwhile, so the closed pipe does not end it."""
        code = f"import prun; prun.run({str(TOP / 'plans/zero3.lua')!r}, nproc=2, set=dict(batch=4096))"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL,
                                   env={**os.environ, "PYTHONPATH": str(TOP / "tools/python")})
        until = time.monotonic() + 30
        while len(ranks := descendants(process.pid)) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.5)  # both ranks compute
        process.kill()
        process.wait()
        # Ranks within an op are killed after a few seconds; a step takes a minute.
        self.assertTrue(all(ends(pid, 15) for pid in ranks))


class Answers(Base):
    def test_check(self):
        found = prun.check(DDP, nproc=2, set=SMALL)
        self.assertTrue(found["proven"])
        self.assertEqual((found["ranks"], len(found["class_of_rank"])), (2, 2))
        with self.assertRaises(prun.PlanError):
            prun.check(TEXT + "return prun.plan { steps = 1 }\n")

    def test_sim_and_tune(self):
        cluster = TOP / "plans/clusters/dgx-a100.yaml"
        self.assertLess(0, prun.sim(DDP, cluster=cluster, nproc=8)["step_s"])
        swept = prun.sim(DDP, cluster=cluster, nproc=8, sweep={"layers": [2, 4]})
        self.assertIn("layers", str(swept))
        best = prun.tune(TOP / "plans/gpt.lua", cluster=cluster, nproc=4, search={"tp": [1, 2], "pp": [1], "zero": [0, 1]})["best"]
        self.assertIn(best[0]["settings"]["tp"], ("1", "2"))
        self.assertLessEqual(best[0]["step_s"], best[-1]["step_s"])

    def test_version(self):
        self.assertEqual(prun.__version__, prun.version())
        self.assertIn(f"VERSION {prun.version()} ", (TOP / "CMakeLists.txt").read_text())


class Words(unittest.TestCase):
    def test_options(self):
        self.assertEqual(option_words({"nproc": 2, "max_restarts": 3, "prove": True, "quiet": False, "name": None}),
                         ["--nproc", "2", "--max-restarts", "3", "--prove"])
        self.assertEqual(option_words({"set": {"a": True, "b": 1e-3}}), ["--set", "a=true", "--set", "b=0.001"])
        self.assertEqual(option_words({"sweep": {"tp": [1, 2]}}), ["--sweep", "tp=1,2"])
        self.assertEqual(option_words({"transport_options": {"slots": 4}}), ["--transport-options", "slots=4"])
        self.assertEqual(option_words({"checkpoint": pathlib.Path("a/b")}), ["--checkpoint", "a/b"])

    def test_magic(self):
        self.assertEqual(options_of("--nproc 2 --set steps=3 --set lr=1e-3 --prove"),
                         {"nproc": "2", "set": {"steps": "3", "lr": "1e-3"}, "prove": True})
        picture = curve([{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}, {"step": 3, "loss": 1.0}])
        self.assertIn('points="52.0,8.0 472.0,116.0"', picture)
        self.assertRegex(picture, ">2</text>.*>1</text>.*>step 1</text>.*>3</text>")
        self.assertEqual(curve([{"step": 1, "loss": 2.0}]), "")

    def test_magic_cell(self):
        from prun import magic

        cells, shown = {}, []

        class Shell:
            user_ns = {}

            def register_magic_function(self, function, magic_kind, magic_name):
                cells[magic_kind, magic_name] = function

        class Handle:
            update = shown.append

        def display(what, display_id=False):
            shown.append(what)
            return Handle() if display_id else None

        kept, magic._display_functions = magic._display_functions, lambda: (display, str)
        self.addCleanup(setattr, magic, "_display_functions", kept)
        prun.load_ipython_extension(Shell())
        cells["cell", "prun"]("--nproc 2 --set steps=3 --set layers=1 --set width=32 --set batch=8", DDP.read_text())
        self.assertEqual([row["step"] for row in Shell.user_ns["_prun_rows"]], [1, 2, 3])
        self.assertIn("<polyline", shown[-1])
        self.assertRegex(shown[-2], r"^step 3, loss \d\.\d{1,3}, \d[-.e\d]* s$")
        shown.clear()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            cells["cell", "prun"]("", "return prun.plan {\n  setps = 3 }\n")
        self.assertIn("prun: cell:3: prun.plan has no option 'setps'", printed.getvalue())  # line 1 is %%prun
        self.assertEqual((shown, Shell.user_ns["_prun_rows"]), (["starts ...", ""], []))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
