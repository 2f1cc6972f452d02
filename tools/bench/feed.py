#!/usr/bin/env python3
"""The cost of a feed: steps of a small GPT on batches of another process, against steps on a token file. One rank with
one thread on one core, the feeder on another. Usage: feed.py PRUN [--steps N]
"""
import argparse
import array
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
CONTEXT, BATCH, VOCAB = 128, 8, 256
PLAN = """
local prun = require "prun"
local arg = prun.args { feed = "", steps = 40 }
local data
if arg.feed ~= "" then
  data = prun.data.feed { name = arg.feed, batch = %(batch)d,
                          inputs = { tokens = { "int64", %(context)d }, targets = { "int64", %(context)d } } }
else
  data = prun.data.tokens { path = "ids.bin", batch = %(batch)d, context = %(context)d, vocab = %(vocab)d }
end
return prun.plan {
  mesh = prun.mesh {}, data = data, optimizer = prun.adamw { lr = 1e-3 }, steps = arg.steps,
  model = prun.models.gpt { vocab = %(vocab)d, layers = 4, width = 128, heads = 4, context = %(context)d },
}
""" % {"batch": BATCH, "context": CONTEXT, "vocab": VOCAB}  # fmt: skip
FEEDER = """
import array, random, sys
sys.path.insert(0, sys.argv[1])
import prun
batch, context, vocab = map(int, sys.argv[3:6])
def batches():
    draw = random.Random(1)
    ready = [memoryview(array.array("q", [draw.randrange(vocab) for _ in range(batch * context)])).cast("B").cast(
        "q", (batch, context)) for _ in range(9)]
    number = 0
    while True:
        yield {"tokens": ready[number % 8], "targets": ready[number % 8 + 1]}
        number += 1
prun.feed(batches(), sys.argv[2])
"""


def measure(prun: str, folder: pathlib.Path, core: int, *options: str) -> tuple[float, float]:
    """Returns the median of a step in ms, and the seconds of CPU of the whole run, which other load hardly changes."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["taskset", "-c", str(core), prun, folder / "plan.lua", "--quiet", "--metrics", metrics, *options],
                   check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * statistics.median([row["time_s"] for row in rows if "time_s" in row][5:]), cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prun")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    prun, name = os.path.abspath(given.prun), f"bench-{os.getpid()}"
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "plan.lua").write_text(PLAN)
        draw = random.Random(1)
        (folder / "ids.bin").write_bytes(array.array("H", [draw.randrange(VOCAB) for _ in range(100000)]).tobytes())
        files, feeds = [], []
        for _ in range(given.rounds):  # alternating, because other load varies
            files.append(measure(prun, folder, cores[0], "--set", f"steps={given.steps}"))
            words = [str(TOP / "tools/python"), name, str(BATCH), str(CONTEXT), str(VOCAB)]
            with subprocess.Popen(["taskset", "-c", str(cores[-1]), sys.executable, "-c", FEEDER, *words]) as feeder:
                feeds.append(measure(prun, folder, cores[0], "--set", f"steps={given.steps}", "--set", f"feed={name}"))
                feeder.wait()
        for what, unit, one, other in zip(("a step", "CPU of a run"), ("ms", "s"), map(min, zip(*files)),
                                          map(min, zip(*feeds))):
            print(f"{what}: token file {one:.2f} {unit}, feed {other:.2f} {unit}: {100 * (other / one - 1):+.1f} %")


if __name__ == "__main__":
    main()
