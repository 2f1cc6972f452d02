#!/usr/bin/env python3
"""Seeded runs with faults: each ends in time, with success or a matching exit code, and leaves no process behind.

Usage: chaos.py PRUN [--runs N] [--first SEED] [--jobs J] [--seed SEED]
The seed determines plan, ranks, transport, hosts and the fault. The run injects it itself (prun --chaos) or this script
does so from outside: a signal to a launcher, or a link between network namespaces that goes down. Two hosts need root
and iproute2; without them two nodes on one machine replace them, and a line reports that. Standard library only.
`--seed N` runs one seed and shows its output.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
DEADLINE_S = 45  # generous for busy machines; with default settings faults are reported within 15 s
STEPS = 30
FOREVER = 100000  # steps of runs that their fault ends
SMALL = {"layers": 2, "width": 32, "heads": 2, "context": 16, "batch": 8}
# plan, ranks, settings
PLANS = [("ddp", 2, {}), ("ddp", 4, {}), ("zero1", 2, {}), ("zero2", 4, {}), ("zero3", 2, {}), ("zero3", 4, {}),
         ("fsdp", 4, {}), ("tp", 2, {"heads": None, "context": None}), ("1f1b", 2, {"layers": 4}), ("pp", 2, {"layers": 4, "heads": None, "context": None}),
         ("3d", 4, {"pp": 1, "tp": 2}), ("3d", 4, {"pp": 2, "tp": 2}), ("moe", 2, {})]
FAULTS = ["kill", "stop", "delay", "reset", "flip", "enospc", "none", "two", "term", "launcher_kill", "launcher_stop",
          "link_down"]
WEIGHTS = [20, 8, 8, 15, 15, 6, 4, 8, 5, 5, 1, 3]


@dataclasses.dataclass
class Case:
    seed: int
    plan: str
    ranks: int
    settings: dict
    transport: str
    hosts: int  # 1: one launcher; 2: two
    fault: str
    spec: str = ""
    codes: tuple = ()
    checkpoint: bool = False
    encrypt: bool = False
    steps: int = STEPS
    rng: random.Random = None

    def words(self):
        where = f"{self.hosts} hosts" if self.hosts > 1 else "1 host"
        how = ", encrypted" if self.encrypt else ""
        return f"seed {self.seed}: {self.plan} x {self.ranks} over {self.transport}{how}, {where}, {self.spec or self.fault}"


def fault_spec(rng, kind, case):
    step = rng.randint(1, STEPS - 8)
    text = f"{kind}:rank={rng.randrange(case.ranks)}"
    if kind in ("reset", "flip"):
        text += ",peer=any"
    text += f",within={rng.choice([0, 1, 5, 20])}"
    if kind == "delay":
        text += f",seconds={rng.choice([0, 1])}"
    return f"{text}@step={step}"


def codes_of(kind, case):
    """Returns the exit codes that fit. A link's fault has an effect only with links and traffic after it."""
    if kind in ("reset", "flip"):
        all_talk = case.transport.startswith("socket") and case.plan not in ("3d", "moe")
        return (17,) if all_talk else (0, 17) if case.transport.startswith("socket") else (2, 0, 17)  # 2: shm has none
    return {"kill": (10,), "stop": (11,), "delay": (0,), "none": (0,), "term": (143,), "launcher_kill": (17, -9),
            "launcher_stop": (11, 17), "link_down": (17, 11), "enospc": (0, 15)}[kind]


def make_case(seed):
    rng = random.Random(seed)
    plan, ranks, settings = rng.choice(PLANS)
    fault = rng.choices(FAULTS, WEIGHTS)[0]
    hosts = 2 if fault in ("launcher_kill", "launcher_stop", "link_down") else rng.choice([1, 1, 1, 2])
    transport = rng.choice(["shm", "socket", "socket unix=0"])
    if fault == "link_down":
        transport = "socket"
    if hosts == 2 and transport == "shm":
        transport = "auto"
    case = Case(seed, plan, ranks, settings, transport, hosts, fault, rng=rng)
    kinds = rng.sample(["kill", "reset", "flip", "delay"], 2) if fault == "two" else [fault]
    inside = [kind for kind in kinds if kind in ("kill", "stop", "delay", "reset", "flip", "enospc")]
    case.spec = ";".join([fault_spec(rng, kind, case) for kind in inside] + [f"seed={seed}"]) if inside else ""
    # The second of two faults may come first, or too late to have an effect.
    case.codes = tuple({code for kind in kinds for code in codes_of(kind, case)} - ({0} if fault == "two" and "kill" in kinds else set()))
    case.checkpoint = fault == "enospc" or rng.random() < 0.2
    case.encrypt = random.Random(f"encrypt {seed}").random() < 0.3
    if 0 not in case.codes:
        case.steps = FOREVER
    if "term" in kinds and case.checkpoint:
        case.codes = (75, 143)
    return case


class Hosts:
    """Two network namespaces with a link between them; `of` returns the command prefix that runs a program in one."""

    def __init__(self, number):
        self.names = [f"chaos{os.getpid()}n{number}h{host}" for host in (0, 1)]
        self.ready = False

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def __enter__(self):
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("-n", self.names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for host, name in enumerate(self.names):
            self.ip("-n", name, "addr", "add", f"10.79.0.{host + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def of(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self):
        self.ip("-n", self.names[1], "link", "set", "eth0", "down")


def namespaces_permitted():
    try:
        with Hosts("probe"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes_of(mark):
    """Returns the live processes (no zombies) whose environment contains the mark."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes() and \
                    (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


class Run:
    def __init__(self, case, prun, namespaces, folder):
        self.case, self.prun, self.folder, self.mark = case, prun, pathlib.Path(folder), f"chaos-{uuid.uuid4().hex}"
        self.hosts = Hosts(case.seed) if namespaces and case.hosts > 1 else None
        self.metrics, self.launchers = self.folder / "metrics.jsonl", []

    def command(self, host):
        case = self.case
        name, _, options = case.transport.partition(" ")
        words = [self.prun, f"plans/{case.plan}.lua", "--nproc", str(case.ranks // case.hosts), "--transport", name, "--timeout", "8"]
        words += [word for key, value in {**SMALL, **case.settings, "steps": case.steps}.items() if value is not None for word in ("--set", f"{key}={value}")]
        words += ["--transport-options", options] if options else []
        words += ["--encrypt"] if case.encrypt else []
        words += ["--chaos", case.spec] if case.spec else []
        words += ["--metrics", str(self.metrics)] if host == 0 else []
        words += ["--runs", str(self.folder / "runs")]
        words += ["--checkpoint", str(self.folder / "kept"), "--checkpoint-every", "5"] if case.checkpoint else []
        if case.hosts > 1:
            address = "10.79.0.1" if self.hosts else "127.0.0.1"
            words += ["--nnodes", "2", "--node-rank", str(host), "--rendezvous", f"{address}:{self.port}"]
        return (self.hosts.of(host) if self.hosts else []) + words

    def start(self):
        self.port = free_port()
        environment = {**os.environ, "PRUN_SECRET": "of chaos alone", "CHAOS_MARK": self.mark}
        for host in range(self.case.hosts):
            with (self.folder / f"words{host}").open("w") as words:
                self.launchers.append(subprocess.Popen(self.command(host), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                                       stdout=words, stderr=words))

    def steps(self):
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0

    def disturb(self):
        """Injects the external fault after a few steps."""
        case, last = self.case, self.launchers[-1]
        if case.fault not in ("term", "launcher_kill", "launcher_stop", "link_down"):
            return
        wanted, end = case.rng.randint(1, 5), time.monotonic() + DEADLINE_S
        while self.steps() < wanted and last.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        if case.fault == "link_down":
            self.hosts.cut() if self.hosts else last.kill()
        else:
            last.send_signal({"term": signal.SIGTERM, "launcher_kill": signal.SIGKILL, "launcher_stop": signal.SIGSTOP}[case.fault])

    def text(self):
        return "".join(f"--- node {host}\n{(self.folder / f'words{host}').read_text(errors='replace')}" for host in range(self.case.hosts))

    def go(self):
        """Returns a description of the error, or ""."""
        begin = time.monotonic()
        self.start()
        self.disturb()
        try:
            code = self.launchers[0].wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            return f"still runs after {DEADLINE_S} s"
        took = time.monotonic() - begin
        if self.case.fault == "launcher_stop":  # a stopped launcher must be killed by its user
            self.launchers[-1].kill()
        for launcher in self.launchers[1:]:
            try:
                launcher.wait(timeout=15)
            except subprocess.TimeoutExpired:
                return f"another launcher still runs 15 s after the first, which ended with {code} after {took:.1f} s"
        if code not in self.case.codes:
            return f"ended with {code}, not {' or '.join(map(str, self.case.codes))}, after {took:.1f} s"
        end = time.monotonic() + 3
        while (left := processes_of(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        if left:
            return f"left processes {left}"
        return self.wrong_blame(code)

    def wrong_blame(self, code):
        """Checks that the first line names the faulty rank, if only one fault was injected."""
        match = re.fullmatch(r"(kill|stop|reset|flip):rank=(\d+),.*;seed=\d+", self.case.spec)
        if code == 0 or match is None or self.case.fault == "two":
            return ""
        found = re.search(r"(?m)^prun: (.*)\n  where: ", self.text())
        first = found[1] if found else self.text()
        # A stopped rank is named first, no matter which ranks wait for it; a link is named by both ends.
        if re.search(rf"^rank {match[2]}\b" if match[1] in ("kill", "stop") else rf"\brank {match[2]}\b", first):
            return ""
        return f"blames another than rank {match[2]}: {first}"


def run_one(seed, prun, namespaces, show=False):
    case = make_case(seed)
    before = {name for name in os.listdir("/dev/shm") if name.startswith("prun")}
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:
        run = Run(case, prun, namespaces, folder)
        try:
            if run.hosts:
                run.hosts.__enter__()
            wrong = run.go()
            end = time.monotonic() + 3  # another run may own some for a moment
            while (left := {name for name in os.listdir("/dev/shm") if name.startswith("prun")} - before) and time.monotonic() < end:
                time.sleep(0.1)
            if left and not wrong:
                wrong = f"left shared memory {left}"
            text = run.text()
        finally:
            for pid in processes_of(run.mark):
                os.kill(pid, signal.SIGKILL)
            if run.hosts:
                run.hosts.__exit__()
    if show:
        print(text)
    return case, wrong, text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prun")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int)
    a = parser.parse_args()
    prun, namespaces = str(pathlib.Path(a.prun).resolve()), namespaces_permitted()
    if not namespaces:
        print("network namespaces are not permitted here (root and iproute2): two nodes on one machine stand for two hosts")
    if a.seed is not None:
        case, wrong, _ = run_one(a.seed, prun, namespaces, show=True)
        print(f"{case.words()}: {wrong or 'as it should'}")
        return 1 if wrong else 0
    begin, wrongs, kinds = time.monotonic(), 0, collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for case, wrong, text in pool.map(lambda seed: run_one(seed, prun, namespaces), range(a.first, a.first + a.runs)):
            kinds[case.fault] += 1
            if wrong:
                wrongs += 1
                print(f"{case.words()}: {wrong}\n{text}", flush=True)
    spread = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{a.runs} runs, {wrongs} wrong, {time.monotonic() - begin:.0f} s: {spread}")
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
