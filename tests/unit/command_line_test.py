#!/usr/bin/env python3
"""The command line around a run: shell completion, manual pages, version, --json of every command, log, prun init.
Usage: command_line_test.py PRUN TOP
"""
import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

PRUN, TOP = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
SMALL = ["--set", "layers=2", "--set", "width=32", "--set", "context=16", "--set", "batch=8", "--set", "steps=6"]
OUTPUTS = [f"{TOP}/tests/outputs/outputs.lua", "--set", "steps=2", "--set", "dtype=f32",
           "--set", f"data={TOP}/tests/outputs/outputs_test.py"]
RUN = [f"{TOP}/plans/zero3.lua", "--nproc", "2", *SMALL]
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if k != "PRUN_LOG"},
               "PATH": f"{PRUN.parent}:{os.environ['PATH']}"}


def run(*words, text=None, **environment):
    return subprocess.run([str(word) for word in words], cwd=TOP, env={**ENVIRONMENT, **environment}, input=text, text=True,
                          capture_output=True, timeout=120)


def prun(*words, **environment):
    return run(PRUN, *words, **environment)


def complete(*words):
    """Returns the candidates with their descriptions, and the characters that the shell may append."""
    rows = [line.split("\t") for line in prun("__complete", *words).stdout.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}, [row[0] for row in rows if len(row) == 1]


class Completion(unittest.TestCase):
    def test_commands_options_plans(self):
        words, more = complete("")
        self.assertIn("doctor", words)
        self.assertIn("plans/zero3.lua", words)
        self.assertEqual(more, [":files"])
        self.assertEqual(set(complete("check", "plans/ddp.lua", "--check-")[0]), {"--check-finite", "--check-replicas"})
        self.assertIn("fully sharded", complete("dump", "plans/zero3")[0]["plans/zero3.lua"])

    def test_values(self):
        self.assertIn("width=", complete("plans/zero3.lua", "--nproc", "2", "--set", "wi")[0])
        self.assertEqual(complete("--set", "wi"), ({}, []))
        self.assertEqual(set(complete("plans/zero3.lua", "--device=c")[0]) & {"--device=cpu", "--device=cuda"}, {"--device=cpu", "--device=cuda"})
        self.assertIn("shm", complete("bench", "all_reduce", "--transport", "")[0])
        self.assertIn("fuse", complete("dump", "--after", "fu")[0])
        self.assertEqual(set(complete("plans/ddp.lua", "--log-level", "")[0]), {"debug", "info", "warning", "error"})
        self.assertEqual(complete("plans/ddp.lua", "--checkpoint", "")[1], [":folders"])
        self.assertEqual(set(complete("ckpt", "ver")[0]), {"verify"})
        self.assertEqual(set(complete("completion", "")[0]), {"bash", "fish", "zsh"})

    def test_a_plan_that_is_wrong_has_no_candidates(self):
        self.assertEqual(complete("no/such.lua", "--set", ""), ({}, []))

    def test_bash(self):
        script = """
          eval "$(prun completion bash)"
          compopt() { :; }
          try() { COMP_LINE=$1; COMP_POINT=${#1}; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _prun; echo "${COMPREPLY[*]}"; }
          try "prun plug" prun plug
          try "prun check plans/zero3.lua --set wi" prun check plans/zero3.lua --set wi
          try "prun plans/zero3.lua --device=cpu-" prun plans/zero3.lua --device = cpu-
          try "prun plans/zero3.lua --resume=" prun plans/zero3.lua --resume =
        """
        done = run("bash", "-c", script)
        self.assertEqual((done.stdout.split("\n")[:4], done.stderr), (["plugins", "width=", "cpu-queue", "auto"], ""))

    def test_fish(self):
        done = run("fish", "-c", 'prun completion fish | source; complete -C"prun check plans/zero3.lua --set wi"; complete -C"prun plug"',
                   HOME=tempfile.gettempdir())
        self.assertRegex(done.stdout, r"^width=\t.*\nplugins\tlist the transports", done.stderr)

    def test_zsh(self):
        # Stubs for zsh's completion functions, which work only while a line is edited, print the arguments of _prun.
        script = """
          source <(prun completion zsh)
          _describe() { print -l -- "${(@P)argv[-1]}" "${(@P)argv[3]-}" }
          _files() { print files "$@" }
          words=(prun plug); CURRENT=2; _prun
          words=(prun ckpt show ''); CURRENT=4; _prun
        """
        done = run("zsh", "-fc", script)
        self.assertEqual(done.stderr, "")
        self.assertRegex(done.stdout, r"plugins:list the transports")
        self.assertIn("files -/", done.stdout)


class Manual(unittest.TestCase):
    def test_every_page_renders_without_warnings(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(prun("man", "--out", folder).returncode, 0)
            pages = {path.name: path for path in pathlib.Path(folder).iterdir()}
            self.assertLessEqual({"prun.1", "prun-check.1", "prun-doctor.1", "prun-man.1"}, set(pages))
            for name, path in pages.items():
                done = run("man", "--warnings", "-l", path, MANWIDTH="80")
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)
                self.assertIn("NAME", done.stdout)
            text = run("man", "-l", pages["prun.1"], MANWIDTH="100").stdout
            for word in ("EXIT STATUS", "PRUN_SECRET", "--trace-steps A:B", "prun-ckpt(1)"):
                self.assertIn(word, text)

    def test_exit_codes_are_those_of_the_readme(self):
        """The table is generated from `prun man`; PRUN_UPDATE=1 rewrites it."""
        page = prun("man").stdout
        status = page[page.index(".SH EXIT STATUS"):page.index(".SH ENVIRONMENT")].replace("\\-", "-")
        rows = [f"| {code} | {what} |\n" for code, what in re.findall(r"\\fB(.*)\\fR\n(.*)\n", status)]
        table = "| code | what ended the job |\n|---|---|\n" + re.sub(r"(--[a-z-]+)", r"`\1`", "".join(rows))
        path = TOP / "README.md"
        text = path.read_text()
        old = re.search(r"\| code \|(.*\|\n)+", text[text.index("## When something fails"):])[0]
        if os.environ.get("PRUN_UPDATE"):
            path.write_text(text.replace(old, table))
        else:
            self.assertEqual(old, table, "PRUN_UPDATE=1 writes the table anew")


class Json(unittest.TestCase):
    def one(self, *words, code=0):
        done = prun(*words, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1, done.stdout[:300])
        found = json.loads(done.stdout)
        self.assertIsInstance(found, dict)
        return found

    def test_every_command_has_it(self):
        self.assertEqual(self.one("check", *RUN)["ranks"], 2)
        program = self.one("dump", *RUN)
        ops = [op["op"] for stream in program["classes"][0]["bodies"][1]["streams"] for op in stream["ops"]]
        self.assertIn("all_gather", ops)
        self.assertIn("plans/zero3.lua", [plan["path"] for plan in self.one("plans")["plans"]])
        self.assertIn("shm", [plugin["name"] for plugin in self.one("plugins")["plugins"]])
        self.assertEqual(len(self.one("plugins", "--explain")["groups"]), 3)
        self.assertEqual(self.one("--version"), self.one("version"))
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.one("runs", folder), {"runs": []})
            self.assertEqual(len(self.one("init", folder)["written"]), 2)

    # Words of each command that answers in JSON, by its name. {0} is a folder with checkpoints `c` and a failed run.
    ANSWERS = {
        "generate": [RUN[0], *SMALL, "--checkpoint", "{0}/c", "--prompt", "a", "--tokens", "2"],
        "eval": [*OUTPUTS, "--from", "{0}/outputs"],
        "predict": [*OUTPUTS, "--from", "{0}/outputs", "--out", "{0}/predicted.npy"],
        "check": RUN,
        "sim": [*RUN, "--cluster", "plans/clusters/laptops.yaml"],
        "calibrate": None,  # takes half a minute: calibrate_test.py
        "tune": [*RUN, "--cluster", "plans/clusters/laptops.yaml", "--search", "prefetch=0,1"],
        "dump": RUN,
        "plans": [],
        "plugins": [],
        "doctor": [],
        "conform": ["shm", "load"],
        "ckpt": ["ls", "{0}/c"],
        "runs": ["{0}/runs"],
        "status": [],
        "explain": ["{0}/failed"],
        "clean": ["{0}/runs", "--dry-run"],
        "draw": [*RUN, "--out", "{0}/picture.svg"],
        "diff": [RUN[0], *RUN],
        "bench": ["all_reduce", "--nproc", "2", "--bytes", "8", "--iters", "1"],
        "init": ["{0}/mine"],
        "version": [],
    }

    def test_an_answer_is_a_line(self):
        """Rows of checkpoints, benchmarks and conformance are a line each."""
        page = prun("--help").stdout
        commands = re.findall(r"^prun ([a-z]+)", page, re.M)
        self.assertEqual([name for name in commands if "  --json" in prun(name, "--help").stdout], list(self.ANSWERS))
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(prun(*RUN, "--checkpoint", f"{folder}/c", "--runs", f"{folder}/runs").returncode, 0)
            self.assertEqual(prun("tests/errors/files/count.lua", "--nproc", "4", "--runs", f"{folder}/failed").returncode, 3)
            self.assertEqual(prun(*OUTPUTS, "--checkpoint", f"{folder}/outputs").returncode, 0)
            [failed] = pathlib.Path(folder, "failed").iterdir()
            for name, words in self.ANSWERS.items():
                if words is None:
                    continue
                with self.subTest(name):
                    done = prun(name, *(word.replace("{0}/failed", str(failed)).replace("{0}", folder) for word in words), "--json")
                    self.assertIn(done.returncode, (0, 1), done.stderr)
                    self.assertTrue(done.stdout.endswith("\n"), done.stderr)
                    for line in done.stdout.splitlines():
                        self.assertIsInstance(json.loads(line), (dict, list))

    def test_of_a_run(self):
        found = self.one(*RUN)
        self.assertEqual((found["exit_code"], found["ranks"], found["steps"], found["mesh"]), (0, 2, 6, "dp=2"))
        self.assertGreater(found["loss"]["first"], found["loss"]["last"])

    def test_of_failures(self):
        self.assertIn("no plan 'nothing.lua'", self.one("check", "nothing.lua", code=2)["error"])
        found = self.one(f"{TOP}/tests/errors/files/count.lua", "--nproc", "4", code=3)
        self.assertEqual(found["exit_code"], 3)
        self.assertIn("count.lua:6", found["failure"]["op"])


class Script(unittest.TestCase):
    """Commands run a plan's script several times; its print and its remarks appear once."""
    PLAN = """local prun = require "prun"
local arg = prun.args { width = 32, layers = { 2, "blocks", tune = "2,4" }, path = "text/sample.txt" }
print("width", arg.width)
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = 2, context = 16 },
  data = prun.data.bytes {
    path = arg.path, batch = 8,
  },
  strategy = { prun.zero3 { axis = "dp" } },
  optimizer = prun.adamw { lr = 3e-4 },
  steps = 2,
}
"""
    CLUSTER = ["--cluster", "plans/clusters/laptops.yaml"]
    REMARK = (":8: data: no file 'text/smaple.txt' (did you mean 'text/sample.txt'?); "
              "prun goes on as if it had enough samples\n")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.plan = pathlib.Path(folder.name, "plan.lua")
        self.plan.write_text(self.PLAN)

    def commands(self):
        return {
            "run": ["--nproc", "2", "--prove"],
            "check": ["--nproc", "2"],
            "sim": ["--nproc", "2", *self.CLUSTER],
            "tune": ["--nproc", "2", *self.CLUSTER, "--search", "width=32,64"],
            "dump": ["--nproc", "2"],
            "draw": ["--nproc", "2", "--out", self.plan.parent / "picture.svg"],
            "diff": [self.plan, "--nproc", "2"],
        }

    def printed(self, name, words):
        done = prun(*([] if name == "run" else [name]), self.plan, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_print_appears_once(self):
        for name, words in self.commands().items():
            with self.subTest(name):
                self.assertEqual(self.printed(name, words).count("width\t32\n"), 2 if name == "diff" else 1)
        self.assertEqual(prun(self.plan, "--help").stderr, "")

    def test_a_missing_data_file_is_named(self):
        for name, words in self.commands().items():
            if name not in ("run", "check"):  # they read the data
                with self.subTest(name):
                    err = self.printed(name, [*words, "--set", "path=text/smaple.txt"])
                    self.assertEqual(err.count(self.REMARK), 2 if name == "diff" else 1, err)


class Help(unittest.TestCase):
    COMMANDS = ([], ["plans/ddp.lua"], ["bench"], ["ckpt"], ["tune"], ["sim"])

    def on_terminal(self, columns, *words):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen([PRUN, *words], cwd=TOP, env=ENVIRONMENT, stdout=theirs) as process, os.fdopen(ours, "rb") as screen:
            os.close(theirs)
            text = b""
            try:
                while part := screen.read1(4096):
                    text += part
            except OSError:  # end of file, on Linux
                pass
            self.assertEqual(process.wait(timeout=60), 0)
        return text.decode().replace("\r\n", "\n")

    def test_lines_fit_the_terminal(self):
        for command in self.COMMANDS:
            piped = prun(*command, "--help").stdout
            self.assertLessEqual(max(map(len, piped.splitlines())), 100)
            narrow = self.on_terminal(80, *command, "--help")
            self.assertLessEqual(max(map(len, narrow.splitlines())), 80)
            self.assertEqual(narrow.split(), piped.split())
            self.assertEqual(self.on_terminal(100, *command, "--help"), piped)

    def test_a_full_disk(self):
        with open("/dev/full", "w") as full:
            long = ["dump", "plans/zero3.lua", "--nproc", "2"]  # more than a buffer
            for words in (["--help"], ["man"], ["version"], long, ["doctor"]):
                done = subprocess.run([PRUN, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=TOP)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stderr.splitlines()[-1], "prun: standard output is incomplete: No space left on device", words)

    def test_files_on_a_full_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = ["sim", "plans/ddp.lua", "--cluster", "dgx-a100", "--trace", f"{folder}/t.json"]
            for words in (["man", "--out", folder], ["init", folder], trace):
                done = subprocess.run([PRUN, *words], capture_output=True, text=True, timeout=60, cwd=TOP,
                                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
                self.assertEqual(done.returncode, 2, (words, done.stderr))
                self.assertRegex(done.stderr, r"prun: cannot write .*: File too large\n")

    def test_headings(self):
        text = prun("--help").stdout
        for heading in ("plan", "transport", "ranks and devices", "checks", "records", "checkpoints and restarts", "general"):
            self.assertIn(f"\n{heading}:\n  --", text)
        self.assertIn("\noptions:\n  --json", prun("plans", "--help").stdout)


class Log(unittest.TestCase):
    EVENT = r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} (debug|info|warning) (launcher|rank \d+) [a-z]+: \S"

    def test_a_line_an_event(self):
        for words, environment in ((["--log-level", "debug"], {}), ([], {"PRUN_LOG": "debug"})):
            err = prun(*RUN, "-q", *words, **environment).stderr
            for line in err.splitlines():
                self.assertRegex(line, self.EVENT)
            self.assertIn("rank 1 transport: connected over shm", err)
            self.assertIn("debug rank 0 exec:", err)

    def test_levels(self):
        self.assertEqual(prun(*RUN).stderr, "")
        info = prun(*RUN, PRUN_LOG="info").stderr
        self.assertNotIn(" debug ", info)
        self.assertIn(" info launcher compile:", info)
        self.assertEqual(prun(*RUN, PRUN_LOG="debug").stderr.count("ended, exit code 0"), 1)
        self.assertEqual(prun(*RUN, SPDLOG_LEVEL="debug").stderr, "")
        self.assertEqual(prun(*RUN, "--log-level", "error", PRUN_LOG="debug").stderr, "")

    def test_quiet(self):
        self.assertEqual(prun(*RUN, "-q").stdout, "")
        self.assertIn("before broadcast on rank 0", prun("plans/collectives.lua", "--nproc", "2", "-q").stdout)
        self.assertIn("next:", prun("tests/errors/files/count.lua", "--nproc", "4", "-q").stderr)


class Trace(unittest.TestCase):
    def test_a_window_of_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            for words, steps in (("3:4", {2, 3}), ("5:", {4, 5}), (":2", {0, 1}), ("6", {5})):
                file = pathlib.Path(folder, "trace.json")
                done = prun(*RUN, "--trace", file, "--trace-steps", words)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                events = json.loads(file.read_text())["traceEvents"]
                self.assertEqual({e["args"]["step"] for e in events if "step" in e.get("args", {})}, steps, words)


class Init(unittest.TestCase):
    def test_its_plan_trains_and_what_is_there_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = pathlib.Path(folder, "mine")
            self.assertIn("next: prun ", prun("init", mine).stdout)
            settings = json.loads((mine / ".luarc.json").read_text())
            self.assertTrue(pathlib.Path(settings["workspace.library"][0], "prun/stubs.lua").exists())
            self.assertEqual(prun(mine / "plan.lua", "--nproc", "2", "--set", "steps=1", "--set", "width=32", "-q").returncode, 0)
            (mine / "plan.lua").write_text("-- mine\n")
            self.assertIn("is there already, and stays", prun("init", mine).stdout)
            self.assertEqual((mine / "plan.lua").read_text(), "-- mine\n")


class Version(unittest.TestCase):
    def test_what_it_says(self):
        done = prun("--version")
        self.assertRegex(done.stdout, r"^prun \d+\.\d+\.\d+( \(commit [0-9a-f]+\))?\nbuild +\w+, GCC .*\nABI +transport \d+, device \d+\ndevices +cpu, ")
        self.assertEqual((done.returncode, done.stdout), (0, prun("version").stdout))
        devices = re.search(r"^devices +(.*)$", done.stdout, re.M)[1].split(", ")
        self.assertEqual(json.loads(prun("version", "--json").stdout)["devices"], devices)
        for missing in re.findall(r"^not built +(\w+): ", done.stdout, re.M):
            self.assertNotIn(missing, devices)
        for device in devices:
            self.assertNotIn("there is no device", prun("plans/single.lua", "--set", "steps=0", "--device", device).stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
