#!/usr/bin/env python3
"""What --encrypt costs: the rate of one core, and all_reduce between two ranks with and without it.

Usage: encrypt.py PRUN [--only core,loopback,hosts] [--bytes 64K,1M,16M,64M]
  core      both ends of a link on one core: what it encrypts and decrypts a second, the kernel's part included
  loopback  two ranks over TCP on loopback
  hosts     two hosts (network namespaces joined by a veth pair: root and iproute2)
Both sides of a row are measured in turn, but for `hosts`, which are two jobs. Standard library only.
"""
import argparse
import json
import os
import subprocess
import sys

import rows

PORT = 29475


def run(words, *more):
    jobs = [subprocess.Popen([*map(str, each)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PRUN_SECRET": "of this bench"})
            for each in (words, *more)]
    outputs = [job.communicate(timeout=600)[0] for job in jobs]
    if any(job.returncode for job in jobs):
        sys.exit(f"{' '.join(map(str, words))} ended with {[job.returncode for job in jobs]}")
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


def show(name, plain, encrypted):
    rate = [bytes_ / time / 1e3 for bytes_, time in (plain, encrypted)]
    print(f"{name:<34} {plain[1]:>10.1f} us {rate[0]:>6.2f} GB/s   encrypted {encrypted[1]:>10.1f} us {rate[1]:>6.2f} GB/s   "
          f"{encrypted[1] / plain[1]:>5.2f} times")


def in_turn(prun, what, sizes, before=()):
    rows = run([*before, prun, "bench", what, "--nproc", 2, "--bind", "none", "--transport", "socket", "--transport-options", "unix=0", "--vs-options",
                "unix=0,encrypt=1", "--bytes", sizes, "--place", "out", "--json"])
    return [(row["bytes"], row["time_us"], row["vs"]["time_us"]) for row in rows]


def core(prun, _):
    first = min(os.sched_getaffinity(0))
    for size, plain, encrypted in in_turn(prun, "ping_pong", "16M", ["taskset", "-c", first]):
        show(f"one core, both ends, {size} bytes", (size, plain), (size, encrypted))
        print(f"{'':<34} TLS alone: {size / (encrypted - plain) / 1e3:.2f} GB/s encrypted and decrypted")


def loopback(prun, sizes):
    for size, plain, encrypted in in_turn(prun, "all_reduce", sizes):
        show(f"loopback, all_reduce, {size} bytes", (size, plain), (size, encrypted))


def hosts(prun, sizes):
    names = [f"prune{os.getpid()}h{host}" for host in (0, 1)]

    def ip(*words):
        subprocess.run(["ip", *words], check=True)
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.79.0.{number + 1}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", name, "link", "set", link, "up")
        times = []
        for option in ([], ["--encrypt"]):
            times.append(run(*(["ip", "netns", "exec", name, prun, "bench", "all_reduce", "--nproc", 1, "--nnodes", 2, "--node-rank", number, "--rendezvous",
                                f"10.79.0.1:{PORT}", "--transport", "socket", "--bytes", sizes, "--place", "out", "--json", *option]
                               for number, name in enumerate(names))))
        for plain, encrypted in zip(*times):
            show(f"two hosts, all_reduce, {plain['bytes']} bytes", (plain["bytes"], plain["time_us"]), (encrypted["bytes"], encrypted["time_us"]))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


PARTS = {"core": core, "loopback": loopback, "hosts": hosts}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prun")
    parser.add_argument("--only", type=rows.names(PARTS), default=",".join(PARTS))
    parser.add_argument("--bytes", default="64K,1M,16M,64M")
    options = parser.parse_args()
    for name in options.only:
        PARTS[name](options.prun, options.bytes)


if __name__ == "__main__":
    main()
