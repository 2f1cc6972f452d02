#!/usr/bin/env python3
"""The output of a run by the real program: live line, plain lines, metrics, trace, and files that cannot be written.
Usage: run_output_test.py PRUN TOP
"""
import bisect
import collections
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

PRUN, TOP = sys.argv[1], sys.argv[2]
SMALL = ["--set", "layers=2", "--set", "width=32", "--set", "context=16", "--set", "batch=8"]


def command(*extra, steps=5, ranks=2):
    return [PRUN, f"{TOP}/plans/zero3.lua", "--nproc", str(ranks), "--set", f"steps={steps}", *SMALL, *extra]


def environment(**changes):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    env.update(changes)
    return env


def on_terminal(columns, *extra, out=None, **changes):
    """Returns what a terminal of that width shows of a run: both outputs, or standard error if `out` is another file.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = subprocess.Popen(command(*extra), stdout=out or slave, stderr=slave, env=environment(**changes))
    os.close(slave)
    shown = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:  # EIO: the last writer has closed the terminal
            break
        if not more:
            break
        shown += more
    os.close(master)
    assert run.wait() == 0, shown
    return shown.decode().replace("\r\n", "\n")


PLAIN_STEP = r"(?m)^step [15]/5  loss 5\."


class Proof(unittest.TestCase):
    """--prove of a run takes place before any rank starts."""

    def test_what_is_proven_trains(self):
        result = subprocess.run(command("--prove", steps=2), capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\Aproven: equals one rank to \d+e-1\d \(dp=2, .* parameters\)\n")
        self.assertIn("2 steps", result.stdout)

    def check(self, plan, *settings):
        """Returns the output of prun check, without and with --json."""
        words = [PRUN, "check", f"{TOP}/{plan}", "--nproc", "2", *[w for s in settings for w in ("--set", s)]]
        shown, as_json = (subprocess.run(words + more, capture_output=True, text=True) for more in ([], ["--json"]))
        self.assertEqual((shown.returncode, as_json.returncode), (0, 0), shown.stderr + as_json.stderr)
        return shown.stdout, json.loads(as_json.stdout)

    def test_a_check_says_what_is_proven(self):
        shown, as_json = self.check("tests/parity/sizes.lua", "dp=2")
        self.assertRegex(shown, r"\A\S+: verified for 2 ranks \(.*\)\nproven: equals one rank to ")
        self.assertTrue(as_json["proven"])
        self.assertEqual(as_json["apart_from"], [])

    def test_a_check_names_what_its_proof_leaves_out(self):
        shown, as_json = self.check("tests/parity/sizes.lua", "dp=2", "experts=4", "capacity=0.5", "wire=bf16")
        names = 'the capacity of experts (each rank drops choices of its own tokens) and the rounding of wire = "bf16"'
        self.assertIn(f"\nproven, apart from {names} (zero2 over dp): equals one rank to ", shown)
        self.assertTrue(as_json["proven"])
        self.assertEqual(len(as_json["apart_from"]), 2)

    def test_a_check_without_a_proof_says_so_in_its_first_line(self):
        shown, as_json = self.check("tests/errors/overflow_in_proof.lua")
        self.assertRegex(shown, r"\A\S+: verified for 2 ranks \(dp=2\), not proven: numbers overflow in the small run ")
        self.assertFalse(as_json["proven"])
        self.assertTrue(as_json["proof"].startswith("not proven: numbers overflow in the small run ("), as_json["proof"])

    def test_what_differs_starts_no_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            metrics = f"{folder}/metrics"
            plan = f"{TOP}/tests/errors/files/strategies.lua"
            words = [PRUN, plan, "--nproc", "2", "--prove", "--set", "case=drifts_unsaid", "--metrics", metrics]
            result = subprocess.run(words, capture_output=True, text=True)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn("averages weights between steps, which one rank has no need of", result.stderr)
            self.assertFalse(os.path.exists(metrics) and os.path.getsize(metrics))


PRINTS = """
local prun = require "prun"
return prun.program(function(r)
  local sum = prun.full({ 1 }, r.rank == 0 and 2^60 // 1 | 0 or 1, { dtype = "i64" })
  prun.all_reduce(sum, "sum")
  local nans = prun.full({ 1 }, r.rank == 0 and 0/0 or 1)
  prun.all_reduce(nans, "max")
  if r.rank > 0 then return end
  prun.print("i64", sum, prun.full({ 2, 1 }, -2^62 // 1 | 0, { dtype = "i64" }))
  prun.print("i32", prun.tensor({ 1234567, -2147483648, 0 }, { dtype = "i32" }))
  prun.print("u8", prun.full({ 2 }, 255, { dtype = "u8" }), "i8", prun.full({ 1 }, -128, { dtype = "i8" }))
  prun.print("f32", prun.tensor { 1234567, -16777217, 0.1, 1234567.8, 1e30, -0.5, 1/0 })
  prun.print("f64", prun.tensor({ 2^53 - 1, 1e15, 1e300 }, { dtype = "f64" }), "bf16", prun.full({ 1 }, 65536, { dtype = "bf16" }))
  prun.print("max", nans)
end)
"""


class Print(unittest.TestCase):
    def test_whole_numbers_are_printed_in_full(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = f"{folder}/prints.lua"
            with open(plan, "w") as file:
                file.write(PRINTS)
            result = subprocess.run([PRUN, plan, "--nproc", "2", "--quiet", "--device", "reference"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [re.sub("-nan", "nan", line) for line in result.stdout.splitlines()]
        self.assertEqual(lines, [
            "i64 [1152921504606846977] [[-4611686018427387904], [-4611686018427387904]]",
            "i32 [1234567, -2147483648, 0]",
            "u8 [255, 255] i8 [-128]",
            "f32 [1234567, -16777216, 0.1, 1.23457e+06, 1e+30, -0.5, inf]",
            "f64 [9007199254740991, 1000000000000000, 1e+300] bf16 [65536]",
            "max [nan]"])


class Terminal(unittest.TestCase):
    def test_the_live_line_is_redrawn_and_fits(self):
        shown = on_terminal(40, TERM="xterm")
        lines = re.findall(r"\r\x1b\[K(?:\x1b\[36m)?([^\r\n\x1b]*)", shown)
        live = [line for line in lines if line.startswith("step ")]
        self.assertTrue(live, shown)
        self.assertLessEqual(max(map(len, live)), 39)
        self.assertIn("\x1b[36m", shown)
        self.assertIn("loss  ", shown[shown.rindex("\x1b[K"):], "the summary follows the line that was cleared")
        self.assertNotRegex(shown, PLAIN_STEP, "the live line shows the steps already")

    def test_log_every_keeps_a_history_above_the_live_line(self):
        shown = on_terminal(100, "--log-every", "2", TERM="xterm")
        self.assertEqual(re.findall(r"step (\d)/5  loss 5\.[^\x1b\r\n]*\n", shown), list("1245"), shown)
        self.assertIn("\r\x1b[K", shown)

    def test_no_color(self):
        shown = on_terminal(100, TERM="xterm", NO_COLOR="1")
        self.assertIn("\r\x1b[K", shown)
        self.assertNotIn("\x1b[36m", shown)

    def test_a_dumb_terminal_gets_plain_lines(self):
        shown = on_terminal(100, TERM="dumb")
        self.assertNotIn("\x1b", shown)
        self.assertEqual(len(re.findall(PLAIN_STEP, shown)), 2, shown)

    def test_a_log_has_everything_and_the_terminal_the_live_line(self):
        with tempfile.TemporaryFile("w+") as log:
            shown = on_terminal(100, out=log, TERM="xterm")
            log.seek(0)
            text = log.read()
        self.assertIn("\r\x1b[K", shown)
        self.assertNotRegex(shown, r"(?m)^(loss|time) ")
        self.check_log(text)

    def test_a_pipe_has_everything_and_no_live_line_comes_between(self):
        tee = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        shown = on_terminal(100, out=tee.stdin, TERM="xterm")
        self.check_log(tee.communicate()[0])
        self.assertEqual(shown, "")

    def check_log(self, text):
        self.assertNotIn("\x1b", text)
        self.assertRegex(text, r"\A\S+zero3.lua on 2 ranks \(dp=2\): [\d,]+ parameters, 5 steps, .* a rank\nreads \S+ \(\w+, [\d.]+ \w+\)\nover shm\n")
        self.assertEqual(len(re.findall(PLAIN_STEP, text)), 2, text)
        self.assertRegex(text, r"(?m)^loss       5\.\d+ -> 5\.\d+ over 5 steps$")


BEGINS_WITH_WEIGHTS = """
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 4, context = 16 },
  init      = prun.init.from { path = "ck" },
  data      = prun.data.bytes { path = "text.bin", batch = 8 },
  strategy  = { prun.zero3 { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e-3 },
  steps     = 2,
}
"""


class Origins(unittest.TestCase):
    """A run names the files that it begins with and those that it leaves."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        with open(f"{self.folder}/text.bin", "wb") as file:
            file.write(b"prun " * 4000)

    def train(self, *extra, steps):
        words = command("--set", f"data={self.folder}/text.bin", "--checkpoint", "ck", *extra, steps=steps)
        result = subprocess.run(words, capture_output=True, text=True, env=environment(), cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_data_checkpoints_and_where_it_goes_on(self):
        first = self.train("--checkpoint-every", "2", steps=4)
        self.assertIn("\nreads text.bin (bytes, 19.5 KiB)\n", first)
        self.assertIn("\ncheckpoint after step 4: ck/step_00000004\n", first)
        self.assertNotIn("goes on", first)
        then = self.train("--resume", "auto", steps=6)
        self.assertIn("\ngoes on after step 4 of ck/step_00000004\n", then)
        self.assertIn("\ncheckpoint after step 6: ck/step_00000006\n", then)

    def test_quiet_names_nothing(self):
        self.assertEqual(self.train("--quiet", steps=2), "")

    def test_initial_weights(self):
        self.train(steps=2)
        with open(f"{self.folder}/from.lua", "w") as file:
            file.write(BEGINS_WITH_WEIGHTS)
        words = [PRUN, "from.lua", "--nproc", "2"]
        result = subprocess.run(words, capture_output=True, text=True, env=environment(), cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("\nbegins with the weights of ck\n", result.stdout)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_prun(self, *extra, **how):
        return subprocess.run(command(*extra, **how), capture_output=True, text=True, env=environment())

    def test_metrics_have_every_step_once(self):
        result = self.run_prun("--metrics", self.path("m"), steps=300, ranks=1)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("m")) as file:
            steps = [json.loads(line) for line in file]
        self.assertEqual([s["step"] for s in steps], list(range(1, 301)))
        for s in steps:
            self.assertEqual(set(s), {"step", "loss", "learning_rate", "grad_norm", "tokens", "time_s", "wall_time", "tokens_per_s", "comm_s",
                                      "exposed_comm_s", "data_s", "memory_bytes", "model_flops_per_s"})
            self.assertGreater(s["time_s"], 0)
            self.assertTrue(0 < s["data_s"] <= s["time_s"], s)
            self.assertAlmostEqual(s["tokens_per_s"] * s["time_s"], 8 * 16, delta=1)

    def test_exposed_communication_is_a_part_of_communication(self):
        result = self.run_prun("--metrics", self.path("m"), steps=100)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("m")) as file:
            for step in map(json.loads, file):
                self.assertLessEqual(step["exposed_comm_s"], step["comm_s"] * (1 + 1e-9), step)

    def test_memory_is_measured_while_all_ranks_are_mapped(self):
        result = self.run_prun(ranks=8)
        self.assertEqual(result.returncode, 0, result.stderr)
        taken = re.search(r"predicted, (?:([\d.]+) MiB to )?([\d.]+) MiB taken", result.stdout)
        self.assertTrue(taken, result.stdout)
        least, most = float(taken[1] or taken[2]), float(taken[2])
        self.assertLess(most, 1.3 * least, "equal ranks take the same")

    def test_the_header_says_how_far_ranks_differ(self):
        words = [PRUN, f"{TOP}/plans/pp.lua", "--nproc", "2", "--set", "steps=2"]
        shown = subprocess.run(words, capture_output=True, text=True, env=environment()).stdout
        header = re.search(r"steps, (\S+ MiB to \S+ MiB) a rank\n", shown)
        self.assertTrue(header, shown)
        self.assertIn(f"memory     {header[1]} a rank predicted", shown)

    def test_flops_are_those_of_the_formula_however_the_model_is_split(self):
        layers, width, context, batch, vocab = 2, 32, 16, 8, 256
        dense = layers * 12 * width * width + vocab * width
        routed = layers * (20 * width * width + 4 * width) + vocab * width  # moe: each token goes to 2 of 4 experts
        plans = [("single", 1, []), ("zero3", 2, []), ("1f1b", 2, ["micro=2"]), ("megatron", 2, []),
                 ("ring_attention", 2, []), ("moe", 2, [])]
        for plan, ranks, settings in plans:
            weights = routed if plan == "moe" else dense
            expected = (6 * weights + 6 * layers * width * context) * batch * context  # causal: half of PaLM's 12·L·d·T
            words = [PRUN, f"{TOP}/plans/{plan}.lua", "--nproc", str(ranks), "--metrics", self.path("m"), "--overwrite", "--set", "steps=2", *SMALL]
            for setting in settings:
                words += ["--set", setting]
            result = subprocess.run(words, capture_output=True, text=True, env=environment())
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, r"(?m)^compute    [\d.]+ [kMGT]FLOP/s$")
            with open(self.path("m")) as file:
                step = json.loads(file.readline())
            self.assertAlmostEqual(step["model_flops_per_s"] * step["time_s"] / expected, 1, delta=1e-4, msg=plan)
            self.assertNotIn("mfu", step)  # the peak of CPUs is unknown

    def test_evaluations_are_in_the_metrics_and_in_the_summary(self):
        plan = [PRUN, f"{TOP}/tests/golden/eval.lua", "--nproc", "2", "--metrics", self.path("m")]
        result = subprocess.run(plan, capture_output=True, text=True, env=environment())
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("m")) as file:
            steps = [json.loads(line) for line in file]
        self.assertEqual([s["step"] for s in steps if "eval_loss" in s], [5, 10, 15, 20])
        self.assertGreater(steps[4]["eval_loss"], steps[19]["eval_loss"])
        self.assertRegex(result.stdout, r"(?m)^step 10/20  loss \d\.\d+  evaluated \d\.\d+ ")
        self.assertRegex(result.stdout, r"(?m)^evaluated  \d\.\d+ -> \d\.\d+, 4 times, ")

    def test_the_trace(self):
        result = self.run_prun("--trace", self.path("t"))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("t")) as file:
            events = json.load(file)["traceEvents"]
        slices = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X":
                begin = round(e["ts"] * 1000)
                slices[e["pid"], e["tid"]].append((begin, begin + round(e["dur"] * 1000), e))
                self.assertGreaterEqual(e["dur"], 0)
        self.assertEqual({e["args"]["name"] for e in events if e["name"] == "process_name"}, {"rank 0", "rank 1"})
        self.assertEqual({e["args"]["name"] for e in events if e["name"] == "thread_name"}, {"compute", "gather", "reduce"})
        ops = [e for track in slices.values() for _, _, e in track if e["cat"] != "wait"]
        for e in ops:
            self.assertRegex(e["args"]["at"], r"\.lua:\d+$")
        self.assertEqual({e["args"]["step"] for e in ops}, set(range(5)))
        for track in slices.values():  # slices of a thread nest or follow one another
            track.sort(key=lambda s: (s[0], -s[1]))
            stack = []
            for begin, end, e in track:
                while stack and stack[-1] <= begin:
                    stack.pop()
                self.assertFalse(stack and end > stack[-1], e)
                stack.append(end)
        self.check_arrows(events, slices)

    def check_arrows(self, events, slices):
        starts = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        self.assertEqual(starts.keys(), ends.keys())
        self.assertEqual({e["name"] for e in starts.values()}, {"edge", "collective"})
        self.assertTrue(any(starts[i]["pid"] != ends[i]["pid"] for i in starts), "none across ranks")
        tracks = {key: [s for s in track if s[2]["cat"] != "wait"] for key, track in slices.items()}
        begins = {key: [s[0] for s in track] for key, track in tracks.items()}
        for i in starts:
            self.assertGreaterEqual(ends[i]["ts"], starts[i]["ts"])
            for e in (starts[i], ends[i]):
                key, at = (e["pid"], e["tid"]), round(e["ts"] * 1000)
                begin, end, _ = tracks[key][bisect.bisect_right(begins[key], at) - 1]
                self.assertTrue(begin <= at < end, e)

    def test_a_plan_with_an_error_leaves_the_last_trace(self):
        before = '{"displayTimeUnit":"ms","traceEvents":[]}'
        with open(self.path("t"), "w") as file:
            file.write(before)
        result = self.run_prun("--trace", self.path("t"), "--set", "heads=5")
        self.assertEqual(result.returncode, 3, result.stderr)
        with open(self.path("t")) as file:
            self.assertEqual(file.read(), before)

    def test_a_full_disk_ends_the_metrics_not_the_run(self):
        result = self.run_prun("--metrics", "/dev/full")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("prun: /dev/full is incomplete: No space left on device\n", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
