"""Judges a case: sends it to the program plan_judge and classifies its answers.

An outcome is a class with a text. The classes that are findings:

    escape          check accepts the plan, but its ranks train something else than one rank
    static escape   only the proof rejects it: without a proof the plan would have run
    overclaim       "proven" without naming a known difference
    wrong program   the verifier rejects the compiled program, no stated limit covers it, and its ranks differ from one rank
    false refusal   the plan is rejected, no stated limit covers it, and its ranks equal one rank or nothing could run
    internal, crash, hang
"""
import json
import os
import pathlib
import re
import selectors
import subprocess
import tempfile
import time

import plan_text
import random_plans

HERE = pathlib.Path(__file__).resolve().parent
FINDINGS = ["escape", "static escape", "overclaim", "wrong program", "false refusal", "internal", "crash", "hang"]
MOST = 1e-8  # relative difference that f64 rounding explains
# One rank trains again with weights that are larger by 1e-6. Rounding causes at most the share MAGNIFIED of the resulting
# difference. If that difference exceeds CHAOTIC, rounding decides the result.
MAGNIFIED, CHAOTIC = 1e-4, 0.1
MOST_RAW = {"f64": MOST, "f32": 2e-3, "bf16": 0.2}  # limits for runs with the plan's own dtypes
SECONDS = 60  # limit per request
APART = "apart from"  # marks known differences in the text of a proof


def read_limits(path=HERE / "limits.txt"):
    """Returns [(regular expression of a message, reason, place in a guide)]."""
    limits = []
    for paragraph in path.read_text().split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if lines:
            pattern, reason, place = lines
            limits.append((re.compile(pattern), reason, place))
    return limits


def write_data(folder):
    """Writes the files that plans read: token ids below 16, and the models of tests/parity."""
    ids = bytearray()
    state = 12345
    for _ in range(4000):
        state = (state * 1103515245 + 12345) % 2**31
        ids += (state >> 16 & 15).to_bytes(2, "little")
    (folder / "ids.bin").write_bytes(bytes(ids))
    odd = HERE.parents[1] / "parity/odd_models.lua"
    (folder / "odd_models.lua").write_text(odd.read_text())


class Worker:
    """A plan_judge process, restarted after a crash or a hang."""

    def __init__(self, program):
        self.program = str(pathlib.Path(program).resolve())
        self.process = None
        self.folder = tempfile.TemporaryDirectory(prefix="prun-plans-")
        self.path = pathlib.Path(self.folder.name) / "case.lua"
        write_data(self.path.parent)

    def start(self):
        # pylint: disable=consider-using-with
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        cwd=self.folder.name, env={**os.environ, "PRUN_LOG": "error"})
        self.left = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def read_line(self, end):
        """Returns a line of its answer, "" if it has died, or None at time `end`."""
        while b"\n" not in self.left:
            if not self.selector.select(max(0, end - time.monotonic())):
                return None
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                return ""
            self.left += read
        line, self.left = self.left.split(b"\n", 1)
        return line.decode()

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, request):
        """Returns {"verdict": ..., "truth": ...}, with "ended" ("crash", "hang") if one is missing."""
        if not self.process:
            self.start()
        self.process.stdin.write((json.dumps(request) + "\n").encode())
        self.process.stdin.flush()
        answers, end = {}, time.monotonic() + SECONDS
        while "truth" not in answers:
            line = self.read_line(end)
            if not line:
                answers["ended"] = "hang" if line is None else "crash"
                self.stop()
                self.errors.seek(0)
                answers["error"] = self.errors.read()[-2000:]
                return answers
            answer = json.loads(line)
            answers[answer.pop("line")] = answer
        return answers


class Facts:
    """Facts from the plan's text that affect an outcome besides the answers."""

    def __init__(self, text):
        self.dtype = re.search(r'dtype = "(\w+)"', text)[1]
        experts = re.sub(r"(?m)^  data = .*", "", text)  # without the capacity of packed streams
        self.drops = "capacity = " in experts and "dropless = true" not in experts  # which choices experts drop depends on the mesh
        wires = set(re.findall(r'wire = "(\w+)"', text))
        self.wires = bool(wires)
        self.rounds = self.dtype == "f64" and self.wires or self.dtype == "f32" and "bf16" in wires  # rounds on the wire
        self.drifts = "local_sgd" in text
        # Whether rounding decides the state of a parameter whose gradient is zero: Lion takes its sign, and Adam with L2
        # magnifies it by lr * decay / eps in each step.
        self.magnifies = "prun.lion" in text or re.search(r"prun\.adam \{.*weight_decay", text) is not None


def difference(found, facts):
    """Returns the difference that one answer reports, or ""."""
    for key in ("stopped", "not_compiled"):
        if key in found:
            return f"{key}: {found[key]}"
    if "lost" in found:
        return f"{found['lost']} are lost"
    keys, most = ["loss", "eval", "norms", "state"], MOST
    if not found.get("finite", True):
        keys = ["loss", "eval"]  # compared up to the first non-finite value
    if facts.magnifies:
        keys, most = ["loss", "eval"], 1e-6
    for key in keys:
        nudged = found.get("sensitivity", {}).get(key, 0)
        if nudged < CHAOTIC and found.get(key, 0) > max(most, MAGNIFIED * nudged):
            return f"{key} differs by {found[key]:.2g}"
    return ""


def raw_difference(found, facts):
    most = MOST_RAW[facts.dtype]
    if facts.wires:
        most = max(most, MOST_RAW["bf16"])
    if "stopped" in found or found.get("loss", 0) > most:
        return found.get("stopped", f"loss with its own dtypes differs by {found.get('loss', 0):.2g}")
    return ""


def normal(text):
    """Returns a message without its numbers and names, equal for all cases of a kind."""
    text = text.split("\n")[0]
    text = re.sub(r"^\S+:\d+: ", "", text)
    text = re.sub(r"\S+\.lua:\d+", "_", text)
    text = re.sub(r"'[^']*'", "'_'", text)
    text = re.sub(r"\([^()]*\)", "", text)
    return re.sub(r"-?\d[\d,.]*(e[-+]?\d+)?", "N", text)[:110].strip()


class Outcome:
    def __init__(self, kind, text="", detail=""):
        self.kind, self.text, self.detail = kind, text, detail

    @property
    def is_finding(self):
        return self.kind in FINDINGS

    @property
    def key(self):
        """Returns a key that is equal for cases of the same kind."""
        return f"{self.kind}: {normal(self.text)}"


def of_refusal(verdict, truth, facts, limits):
    text, stage = verdict["text"], verdict["stage"]
    widened = truth.get("widened", {})
    if "one_rank" in truth or "one_rank" in widened:
        return Outcome("refused: wrong on one rank, too", text)
    differs = difference(widened, facts) if widened else "cannot be run"
    if stage == "proof":
        if not differs:
            return Outcome("false refusal", text, "the plan's ranks equal one rank")
        if not widened.get("finite", True):
            return Outcome("refused: overflow", text)
        return Outcome("static escape", differs + "; the proof: " + text, text)
    for pattern, _, _ in limits:
        if pattern.search(text):
            return Outcome("refused: stated limit", text)
    if stage == "verify" and differs and not differs.startswith("not_compiled"):
        return Outcome("wrong program", text, differs)
    return Outcome("false refusal", text, differs or "the plan's ranks equal one rank")


def of_acceptance(verdict, truth, facts):
    widened, raw, text = truth["widened"], truth.get("raw", {}), verdict.get("text", "")
    proof = verdict.get("proof", "none")
    if "one_rank" in widened:
        return Outcome("internal", "accepted on its mesh, refused on one rank: " + widened["one_rank"])
    claims = proof == "equal" and APART not in text
    excused = facts.drops or facts.drifts
    differs = difference(widened, facts)
    if differs and not excused:
        return Outcome("escape", differs, text)
    if claims and facts.drops and differs:
        return Outcome("overclaim", "experts drop choices", f"{differs}; the proof: {text}")
    if claims and facts.rounds and raw.get("loss", 0) > (MOST if facts.dtype == "f64" else 1e-6):
        return Outcome("overclaim", "numbers travel rounded", f"loss differs by {raw['loss']:.2g}; the proof: {text}")
    if claims and facts.dtype == "bf16" and raw.get("loss", 0) > 1e-6:
        return Outcome("overclaim", "bf16", f"loss differs by {raw['loss']:.2g}; the proof: {text}")
    if raw and not excused and raw_difference(raw, facts):
        return Outcome("escape", raw_difference(raw, facts), text)
    if proof == "equal":
        return Outcome("proven" if claims else "proven apart")
    if proof == "as_it_says":
        return Outcome("differs as it says")
    return Outcome("not proven", text)


class Judge:
    def __init__(self, program):
        self.worker = Worker(program)
        self.limits = read_limits()

    def judge(self, case):
        return self.judge_text(plan_text.plan_text(case), random_plans.ranks_of(case), case["check"])

    def judge_text(self, text, ranks, check):
        facts = Facts(text)
        self.worker.path.write_text(text)
        raw = facts.dtype != "f64" or facts.wires
        answers = self.worker.ask({"plan": self.worker.path.name, "ranks": ranks, "raw": raw, **check})
        if "internal" in answers.get("truth", {}):
            return Outcome("internal", answers["truth"]["internal"])
        verdict = answers.get("verdict")
        if "ended" in answers:
            stage = "" if not verdict else "while it runs: "
            if verdict and verdict.get("refused") and verdict["stage"] != "proof":
                return Outcome("wrong program", verdict["text"], answers["ended"])
            return Outcome(answers["ended"], stage + answers["error"].strip().split("\n")[-1])
        if verdict.get("exit", 3) not in (3, 19) or "bug of prun" in verdict.get("text", ""):
            return Outcome("internal", verdict["text"])
        if verdict.get("refused"):
            return of_refusal(verdict, answers["truth"], facts, self.limits)
        return of_acceptance(verdict, answers["truth"], facts)
