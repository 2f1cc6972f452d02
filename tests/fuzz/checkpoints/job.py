"""Executes the commands of a sequence: runs prun, sends signals, and writes each command as a line of a shell script.
"""
import base64
import dataclasses
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import time

PATIENCE_S = 100
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}


@dataclasses.dataclass
class Job:
    """One `prun linear.lua` that writes checkpoints."""
    number: int
    checkpoint: str  # folder: D, E
    resume: object  # None, "auto", a folder's name, or a Node with `resume_path`
    resume_path: str
    steps: int
    every: int
    keep: int
    nproc: int
    data: str  # path
    settings: dict  # content, seed, order, outputs: a resumed job must repeat them
    tuning: dict  # batch, lr, momentum, strategy: a resumed job may change them
    overwrite: bool = False
    new_data: bool = False
    chaos: str = ""
    init: str = ""  # folder whose newest checkpoint has the initial weights; "" = none
    memory: int = 0  # steps between commits to memory; 0 = none
    stop: dict | None = None  # signal, commits, ms
    port: int = 0  # rendezvous of two nodes with `nproc` ranks in total; 0 = one node

    @property
    def metrics(self):
        return f"metrics{self.number}.jsonl"

    def words(self, node=0):
        sets = {"data": self.data, "seed": self.settings["seed"], "order": self.settings["order"],
                "outputs": self.settings["outputs"], **self.tuning, "steps": self.steps, **({"memory": self.memory} if self.memory else {})}
        sets.update({"init": self.init} if self.init else {})
        words = ["prun", "linear.lua", "--nproc", str(self.nproc // 2 if self.port else self.nproc)]
        words += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        words += ["--checkpoint", self.checkpoint, "--checkpoint-every", str(self.every)]
        words += ["--checkpoint-keep", str(self.keep)] if self.keep else []
        words += ["--resume", self.resume_path] if self.resume_path else []
        words += ["--overwrite"] if self.overwrite else []
        words += ["--new-data"] if self.new_data else []
        words += ["--chaos", self.chaos, "--max-restarts", "1"] if self.chaos else []
        words += ["--nnodes", "2", "--node-rank", str(node), "--rendezvous", f"127.0.0.1:{self.port}", "--timeout", "20"] if self.port else []
        return words + ([] if node else ["--metrics", self.metrics]) + ["--quiet"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass
class Done:
    code: int
    text: str  # stdout and stderr


class Shell:
    """A folder in which commands run, and the script that repeats them."""

    def __init__(self, prun, folder):
        self.prun, self.folder, self.script = prun, pathlib.Path(folder), []

    def at(self, name):
        return self.folder / name

    def log(self, line):
        self.script.append(line)

    def put(self, name, content):
        self.at(name).write_bytes(content)
        text = base64.b64encode(content).decode()
        self.log(f"echo {text} | base64 -d >{name}")

    def do(self, line):
        """Runs a line of sh, and adds it to the script."""
        self.log(line)
        subprocess.run(["sh", "-c", line], cwd=self.folder, check=True, capture_output=True, timeout=PATIENCE_S)

    def start(self, words):
        return subprocess.Popen([self.prun, *words[1:]], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace")

    def wait(self, process):
        """Waits for the launcher and all its ranks, which also hold the pipe."""
        try:
            text, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            text = process.communicate()[0] + f"\n(still ran after {PATIENCE_S} s)"
            return Done(-1, text)
        return Done(process.returncode if process.returncode >= 0 else 128 - process.returncode, text)

    def ask(self, *words):
        """Runs a read-only command, which is not part of the script."""
        return self.wait(self.start(["prun", *words]))

    def run(self, job):
        if not job.port:
            return self.run_node_0(job)
        self.log(shlex.join(job.words(1)) + " & other=$!")
        other = self.start(job.words(1))
        done = self.run_node_0(job)
        self.log("kill $other; wait $other")
        try:
            other.wait(1)  # node 1 waits for a missing node 0
        except subprocess.TimeoutExpired:
            other.terminate()
        return Done(done.code, f"{done.text}\n  node 1: {self.wait(other).text}")

    def run_node_0(self, job):
        words = job.words()
        if not job.stop:
            self.log(shlex.join(words) + "; echo exit $?")
            return self.wait(self.start(words))
        name, commits, delay = job.stop["signal"], job.stop["commits"], job.stop["ms"] / 1000
        there = self.indices(job.checkpoint)
        self.log(shlex.join(words) + " & job=$!")
        if commits:
            self.log(f"until [ $(ls {job.checkpoint}/step_*/index.json 2>/dev/null | wc -l) -ge {len(there) + commits} ] "
                     "|| ! kill -0 $job 2>/dev/null; do sleep 0.001; done")
        self.log(f"sleep {delay:.4f}; kill -{name.upper()} $job; wait $job; echo exit $?; sleep 0.5")
        process = self.start(words)
        end = time.monotonic() + PATIENCE_S
        while commits and process.poll() is None and len(self.indices(job.checkpoint) - there) < commits and time.monotonic() < end:
            time.sleep(0.001)
        job.stop["reached"] = not commits or len(self.indices(job.checkpoint) - there) >= commits
        time.sleep(delay)
        job.stop["sent"] = process.poll() is None
        if job.stop["sent"]:
            process.send_signal(SIGNALS[name])
        return self.wait(process)

    def run_both(self, one, other, gap_s):
        """Runs two jobs, the second `gap_s` after the first."""
        self.log(f"{shlex.join(one.words())} & one=$!; sleep {gap_s:.4f}")
        self.log(f"{shlex.join(other.words())}; echo exit $?; wait $one; echo exit $?")
        first = self.start(one.words())
        time.sleep(gap_s)
        second = self.start(other.words())
        return self.wait(first), self.wait(second)

    def indices(self, folder):
        """Returns the identities of a folder's checkpoints; a job may write there concurrently."""
        found = set()
        try:
            for entry in os.scandir(self.at(folder)):
                if entry.name.startswith("step_") and "tmp" not in entry.name and "old" not in entry.name:
                    found.add((entry.name, entry.inode()))
        except OSError:
            pass
        return found
