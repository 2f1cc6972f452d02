#!/usr/bin/env python3
"""Measures how soon a fault is detected and its job ends or continues, and whether a loaded machine raises false
alarms.

Usage: faults.py PRUN [--rounds N] [--only kill,stop,restart,blackhole,crowd]
  kill       SIGKILL of a random one of 8 ranks: until the launcher's verdict (events.jsonl), until all ranks are gone
  stop       SIGSTOP of one of 4 ranks, default settings: until it is named
  restart    SIGKILL of one of 4 ranks, or of all of one of two nodes, which is restarted immediately: until the end of
             the first step after, from memory and from the disk
  blackhole  one of two hosts stops responding (network namespaces: root and iproute2): until node 0 has ended
  crowd      64 ranks and two busy loops for 60 s, --timeout 10: no alarm may be raised
Standard library only.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/faults"))
sys.path.insert(0, str(ROOT / "tests/faults/chaos"))
import chaos  # noqa: E402
import prun_faults_test as faults  # noqa: E402
import rows  # noqa: E402

SMALL = ["layers=2", "width=32", "heads=2", "context=16", "steps=1000000"]


def command(prun, plan, *options, batch=16):
    words = [word for each in (*SMALL, f"batch={batch}") for word in ("--set", each)]
    return [prun, f"plans/{plan}.lua", *words, *options]


def start(words, folder):
    return subprocess.Popen([*words, "--runs", str(folder / "runs"), "--metrics", str(folder / "metrics")], cwd=ROOT,
                            stdin=subprocess.DEVNULL, stdout=(folder / "words").open("a"), stderr=subprocess.STDOUT)


def wait_for_steps(folder, count):
    metrics = folder / "metrics"
    faults.wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= count, f"step {count}", 120)


def ranks_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def spread(seconds):
    ordered = sorted(seconds)
    return f"median {ordered[len(ordered) // 2] * 1e3:.0f} ms, most {ordered[-1] * 1e3:.0f} ms of {len(ordered)}"


def kill(prun, rounds):
    noticed, gone = [], []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            job = start(command(prun, "zero3", "--nproc", "8", "--transport", random.Random(seed).choice(["shm", "socket"])), folder)
            wait_for_steps(folder, 3)
            ranks = ranks_of(job.pid)
            at, wall = time.monotonic(), time.time()
            os.kill(random.Random(seed).choice(ranks), signal.SIGKILL)
            job.wait(timeout=30)
            gone.append(time.monotonic() - at)
            events = next((folder / "runs").glob("*/events.jsonl")).read_text().splitlines()
            noticed.append(next(event["wall_time"] for event in map(json.loads, events) if event["event"] == "failure") - wall)
            assert job.returncode == 10 and not any(map(faults.running, ranks)), (folder / "words").read_text()
    print(f"kill, 8 ranks: decided after {spread(noticed)}; all gone after {spread(gone)}")


def stop(prun, rounds):
    named = []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            job = start(command(prun, "zero3", "--nproc", "4"), folder)
            wait_for_steps(folder, 3)
            victim = random.Random(seed).choice(ranks_of(job.pid))
            at = time.monotonic()
            os.kill(victim, signal.SIGSTOP)
            faults.wait_for(lambda folder=folder, victim=victim: f"kill -CONT {victim}" in (folder / "words").read_text(), "its name", 60)
            named.append(time.monotonic() - at)
            job.send_signal(signal.SIGINT)
            job.wait(timeout=30)
    print(f"a stopped rank of 4 is named after {spread(named)}")


KEEPING = """local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data = prun.data.bytes { path = "text/sample.txt", batch = 16 },
  strategy = { prun.zero3 { axis = "dp" } }, optimizer = prun.adamw { lr = 1e-3 },
  steps = 1000000, checkpoint = prun.checkpoint { every = 20, replicate = %d },
}
"""


def wait_for_step_after_restart(folder):
    faults.wait_for(lambda: "restart 1 of" in (folder / "words").read_text(), "a restart")
    at = time.time()

    def has_one():
        lines = (folder / "metrics").read_text().splitlines()
        rows = [json.loads(line) for line in lines[-20:] if line.endswith("}")]
        return any(row.get("wall_time", 0) > at for row in rows if "loss" in row)
    faults.wait_for(has_one, "a step after the restart")


def restart(prun, rounds):
    for where, replicate in (("memory", 1), ("the disk", 0)):
        for nodes in (1, 2):
            seconds = [restarted(prun, replicate, nodes) for _ in range(rounds)]
            lost = "a rank of 4" if nodes == 1 else "one of two nodes of 2 ranks"
            print(f"{lost} is lost: first step after a restart from {where} after {spread(seconds)}")


def restarted(prun, replicate, nodes):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "plan.lua").write_text(KEEPING % replicate)
        words = [prun, str(folder / "plan.lua"), "--nproc", str(4 // nodes), "--nnodes", str(nodes), "--max-restarts", "1",
                 "--rendezvous", f"127.0.0.1:{faults.free_port()}"]
        words += [] if replicate else ["--checkpoint", str(folder / "ck")]
        own = [folder / str(node) for node in range(nodes)]
        for each in own:
            each.mkdir()
        jobs = [start([*words, "--node-rank", str(node)], own[node]) for node in range(nodes)]
        wait_for_steps(own[0], 60)
        victims = ranks_of(jobs[-1].pid)
        at = time.monotonic()
        if nodes == 1:
            os.kill(victims[1], signal.SIGKILL)
        else:
            for pid in (jobs[1].pid, *victims):
                os.kill(pid, signal.SIGKILL)
            jobs[1].wait()
            jobs.append(start([*words, "--node-rank", "1"], own[1]))
            subprocess.run([prun, "clean"], cwd=folder, check=True, capture_output=True)
        wait_for_step_after_restart(own[0])
        seconds = time.monotonic() - at
        jobs[0].send_signal(signal.SIGINT)
        for job in jobs:
            job.wait(timeout=60)
        return seconds


def blackhole(prun, rounds):
    ended = []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as name, chaos.Hosts(seed) as hosts:
            folder = pathlib.Path(name)
            os.environ["PRUN_SECRET"] = "of this measurement alone"
            nodes = []
            for host in (0, 1):
                own = folder / str(host)
                own.mkdir()
                nodes.append(start([*hosts.of(host), *command(prun, "ddp", "--nproc", "2", "--nnodes", "2", "--node-rank", str(host),
                                                              "--rendezvous", "10.79.0.1:29501")], own))
            wait_for_steps(folder / "0", 3)
            at = time.monotonic()
            hosts.cut()
            nodes[0].wait(timeout=60)
            ended.append(time.monotonic() - at)
            assert nodes[0].returncode == 17, (folder / "0/words").read_text()
            nodes[1].wait(timeout=60)
    print(f"a host behind a dead link: node 0 has ended after {spread(ended)}")


def crowd(prun, _rounds):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            job = start(command(prun, "ddp", "--nproc", "64", "--timeout", "10", batch=64), folder)
            wait_for_steps(folder, 1)
            time.sleep(60)
            text = (folder / "words").read_text()
            alive = job.poll() is None
            job.send_signal(signal.SIGINT)
            job.wait(timeout=60)
            steps = (folder / "metrics").read_bytes().count(b"\n")
            print(f"64 ranks on {os.cpu_count()} cores beside 2 busy loops: {'no alarm' if alive and 'prun: ' not in text else text} in 60 s, {steps} steps")
    finally:
        for process in busy:
            process.kill()
            process.wait()


PARTS = {"kill": kill, "stop": stop, "restart": restart, "blackhole": blackhole, "crowd": crowd}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prun")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", type=rows.names(PARTS), default=",".join(PARTS))
    a = parser.parse_args()
    for each in a.only:
        PARTS[each](str(pathlib.Path(a.prun).resolve()), a.rounds)
