#!/usr/bin/env python3
"""Random sequences of jobs, kills, resumes, branches and mishaps in checkpoint folders, compared with a model of them.

Usage: checkpoints.py PRUN [--seconds S] [--sequences N] [--seed FIRST] [--jobs J] [--failures N] [--found] [--replay FILE ..]
A seed decides a sequence. One that fails is shrunk and printed as a shell script that repeats it, and the exit code is 1.
README.md lists the compared properties. This program uses the standard library only.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from generator import draw_sequence
from job import Shell
from judge import Wrong
from operations import World
from samples import Reference
from shrinker import shrink

ROOM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # fsync to a disk takes longer than a job here


def carry_out(prun, reference, config, operations):
    """Returns the broken invariant or None, and the script of the commands."""
    folder = tempfile.mkdtemp(prefix="fuzz-checkpoints-", dir=ROOM)
    shell = Shell(prun, folder)
    try:
        world = World(shell, reference, config)
        for operation in operations:
            world.go(operation)
        return None, shell.script
    except Wrong as wrong:
        return wrong, shell.script
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(prun, seed, wrong, script, config, operations):
    lines = [f"\n# seed {seed}: {wrong}".replace("\n", "\n# ").lstrip("# \n"), "set -m", f"PATH={prun.parent}:$PATH", "cd $(mktemp -d)", *script]
    return "\n".join(["", "#!/bin/sh", "# " + lines[0], *lines[1:], "", f"# --replay: {json.dumps({'config': config, 'operations': operations})}", ""])


def run_seed(seed, prun, reference, shrinks, sequence=None):
    """Returns the kind of the failure, or None, and its report."""
    config, operations = sequence or draw_sequence(seed)
    wrong, script = carry_out(prun, reference, config, operations)
    if wrong is None:
        return None, ""
    found = [(wrong, script, operations)]

    def fails(candidate):
        other, its_script = carry_out(prun, reference, config, candidate)
        if other is None or other.kind != wrong.kind:
            return False
        found.append((other, its_script, candidate))
        return True

    if shrinks:
        shrink(operations, fails)
    wrong, script, operations = found[-1]
    return wrong.kind, report(prun, seed, wrong, script, config, operations)


def read(file):
    sequence = json.loads(file.read_text())
    return sequence["config"], sequence["operations"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prun", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60, help="begin no further sequence after this time")
    parser.add_argument("--sequences", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; the next have the next numbers")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="sequences at a time")
    parser.add_argument("--failures", type=int, default=1, help="end after so many that failed")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--replay", type=pathlib.Path, nargs="*", default=[], help="files with a sequence each, run before the others")
    parser.add_argument("--found", action="store_true", help="replay those in the folder found first")
    a = parser.parse_args()
    prun = a.prun.resolve()
    replayed = a.replay + (sorted((pathlib.Path(__file__).resolve().parent / "found").glob("*.json")) if a.found else [])
    reference, begin, kinds, done = Reference(prun), time.monotonic(), collections.Counter(), 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        waiting = {pool.submit(run_seed, file, prun, reference, False, read(file)): file for file in replayed}
        seed = a.seed
        while True:
            while len(waiting) < a.jobs and seed < a.seed + a.sequences and time.monotonic() - begin < a.seconds and sum(kinds.values()) < a.failures:
                waiting[pool.submit(run_seed, seed, prun, reference, not a.no_shrink)] = seed
                seed += 1
            if not waiting:
                break
            for future in concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED).done:
                del waiting[future]
                kind, text = future.result()
                done += 1
                if kind:
                    kinds[kind] += 1
                    print(text, flush=True)
    took = time.monotonic() - begin
    print(f"{done} sequences from seed {a.seed} on, {sum(kinds.values())} wrong {dict(kinds) if kinds else ''}, {took:.0f} s, {done / took:.1f} a second")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
