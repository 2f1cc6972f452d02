#!/usr/bin/env python3
"""What a checkpoint costs, beside what the machine allows: the state of a GPT with AdamW, about SIZE GiB, in FOLDER.

    tools/bench/checkpoint.py --folder /a/disk --gib 1 --rounds 3

stand   how long compute stands for the snapshot (`copied_s` in the metrics), against a copy of the same bytes in memory
        (memcpy)
beside  steps while the checkpoint is written, against steps before it
write   from the snapshot to the commit, against `dd conv=fsync` of the same bytes on the same disk
read    `prun ckpt verify` (reads all, SHA-256 of all) with the page cache dropped, against `dd` of the same files
reshard `prun ckpt reshard` to three ranks, against `dd conv=fsync` of the same bytes
alone   the same as write, of a checkpoint at the end of a run, when no steps compute
hash    what SHA-256 of the bytes takes on one core, as write's lower bound, whatever else the cores do

Each round does all of them in turn; medians. Dropping the page cache needs root; without it, reading is not measured.
"""
import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PLAN = """local prun = require "prun"
local arg = prun.args { layers = 12, steps = 20 }
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.gpt { vocab = 256, layers = arg.layers, width = 768, heads = 12, context = 64 },
  data = prun.data.bytes { path = "text/sample.txt", batch = 2 },
  strategy = prun.world > 1 and { prun.zero1 { axis = "dp" } } or {},
  optimizer = prun.adamw { lr = 1e-4 },
  steps = arg.steps,
}
"""
LAYER_BYTES = 12 * (12 * 768 * 768 + 13 * 768)  # parameters and two moments in f32


def memcpy_seconds(size):
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)
    ctypes.memset(target, 2, size)
    begin = time.perf_counter()
    ctypes.memmove(target, source, size)
    return time.perf_counter() - begin


def hash_seconds(size):
    part = bytes(64 << 20)
    begin = time.perf_counter()
    hashlib.sha256(part).digest()
    return (time.perf_counter() - begin) * size / len(part)


def dd_seconds(*words):
    begin = time.perf_counter()
    subprocess.run(["dd", "bs=16M", *words], check=True, capture_output=True)
    return time.perf_counter() - begin


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


class Watch(threading.Thread):
    """When a checkpoint's folder appears under its temporary name, and when it gets its own."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.seen, self.over = folder, {}, threading.Event()

    def run(self):
        while not self.over.wait(0.002):
            for path in self.folder.glob("step_*"):
                step = int(path.name[5:13])
                self.seen.setdefault((step, path.suffix == ".tmp"), time.perf_counter())

    def written_seconds(self, step):
        return self.seen[step, False] - self.seen[step, True]


def train(args, plan, folder, middle, steps):
    """Rows of the metrics, and how long the checkpoint after step `middle` took to write."""
    metrics = folder.parent / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    runs = folder.parent / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    watch = Watch(folder)
    watch.start()
    subprocess.run([args.prun, plan, "--nproc", str(args.nproc), "--set", f"layers={args.layers}", "--set", f"steps={steps}", "--checkpoint", folder,
                    "--checkpoint-every", str(middle), "--check-replicas", "0", "--metrics", metrics, "--runs", runs], check=True, capture_output=True)
    watch.over.set()
    watch.join()
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    [run] = runs.iterdir()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    copied = next(event["copied_s"] for event in events if event["event"] == "checkpoint_copied" and event["step"] == middle)
    return [row["time_s"] for row in rows if "time_s" in row], copied, watch.written_seconds(middle), watch.written_seconds(steps)


def one_round(args, plan, work):
    kept = work / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    os.sync()
    middle, steps = args.steps, 3 * args.steps
    times, copied, written, alone = train(args, plan, kept, middle, steps)
    listed = [json.loads(line) for line in subprocess.run([args.prun, "ckpt", "ls", kept, "--json"], check=True, capture_output=True, text=True).stdout.splitlines()]
    size = listed[0]["bytes"]
    before = statistics.median(times[1:middle])
    busy, left = [], written
    for seconds in times[middle + 1:]:
        if left < seconds:
            break
        busy.append(seconds)
        left -= seconds
    figures = {"bytes": size, "memcpy_s": memcpy_seconds(size), "stand_s": copied, "step_s": before,
               "beside_s": statistics.median(busy) if busy else float("nan"), "write_s": written, "alone_s": alone, "hash_s": hash_seconds(size)}
    figures["dd_write_s"] = dd_seconds("if=/dev/zero", f"of={work / 'dd'}", f"count={size >> 24}", "conv=fsync")
    whole = kept / f"step_{middle:08}"
    begin = time.perf_counter()
    subprocess.run([args.prun, "ckpt", "reshard", whole, "--ranks", "3", "--out", work / "other"], check=True, capture_output=True)
    figures["reshard_s"] = time.perf_counter() - begin
    shutil.rmtree(work / "other")
    if drop_caches():
        begin = time.perf_counter()
        subprocess.run([args.prun, "ckpt", "verify", whole], check=True, capture_output=True)
        figures["read_s"] = time.perf_counter() - begin
        drop_caches()
        figures["dd_read_s"] = sum(dd_seconds(f"if={path}", "of=/dev/null") for path in whole.glob("*.safetensors"))
    (work / "dd").unlink()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="on the disk that is measured")
    parser.add_argument("--gib", type=float, default=1, help="size of the state")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--prun", type=pathlib.Path, default=TOP / "build/release/bin/prun")
    parser.add_argument("--steps", type=int, default=12, help="before the checkpoint; twice as many follow")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.layers = max(1, round(args.gib * (1 << 30) / LAYER_BYTES))
    work = args.folder / "prun-checkpoint-bench"
    work.mkdir(parents=True)
    try:
        plan = work / "plan.lua"
        plan.write_text(PLAN)
        (work / "text").mkdir()
        shutil.copy(TOP / "plans/text/sample.txt", work / "text")
        rounds = [one_round(args, plan, work) for _ in range(args.rounds)]
    finally:
        shutil.rmtree(work)
    middle = {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
    rate = middle["bytes"] / 1e6
    missed = False

    def row(name, ours, theirs, ratio, bar, good):
        nonlocal missed
        missed |= not good
        print(f"{name:<7} {ours:>14} {theirs:>22}  {ratio:>7.2f}  bar {bar}{'' if good else '  MISSED'}")

    print(f"{middle['bytes'] / (1 << 30):.2f} GiB of {args.nproc} ranks, steps of {middle['step_s'] * 1e3:.0f} ms, median of {args.rounds}")
    stand = middle["stand_s"] / middle["memcpy_s"]
    row("stand", f"{middle['stand_s'] * 1e3:.0f} ms", f"memcpy {middle['memcpy_s'] * 1e3:.0f} ms", stand, "1.5", stand <= 1.5)
    beside = middle["beside_s"] / middle["step_s"]
    row("beside", f"{middle['beside_s'] * 1e3:.0f} ms", f"before {middle['step_s'] * 1e3:.0f} ms", beside, "1.1", beside <= 1.1)
    write = middle["dd_write_s"] / middle["write_s"]
    row("write", f"{rate / middle['write_s']:.0f} MB/s", f"dd {rate / middle['dd_write_s']:.0f} MB/s", write, "0.8", write >= 0.8)
    for name, what in (("alone", f"dd {rate / middle['dd_write_s']:.0f} MB/s"), ("hash", "SHA-256 on one core")):
        print(f"{name:<7} {rate / middle[name + '_s']:>9.0f} MB/s {what:>22}  {middle['dd_write_s'] / middle[name + '_s']:>7.2f}")
    reshard = middle["dd_write_s"] / middle["reshard_s"]
    row("reshard", f"{rate / middle['reshard_s']:.0f} MB/s", f"dd {rate / middle['dd_write_s']:.0f} MB/s", reshard, "0.5", reshard >= 0.5)
    if "read_s" in middle:
        read = middle["dd_read_s"] / middle["read_s"]
        row("read", f"{rate / middle['read_s']:.0f} MB/s", f"dd {rate / middle['dd_read_s']:.0f} MB/s", read, "0.8", read >= 0.8)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
