"""A timeline of the device: every rank's streams and, if GPUs communicate, the overlap with compute."""
import json

from gpu_check.check import Check, Part, Verdict

LARGE = {"layers": 4, "width": 512, "heads": 8, "context": 256, "batch": 16, "steps": 8}
SMALL = {"layers": 2, "width": 64, "context": 32, "batch": 16, "steps": 3}  # where speed does not matter


def slices(events):
    """Returns {(rank, thread): [(begin, end) in microseconds]}, without waits."""
    found = {}
    for event in events:
        if event["ph"] == "X" and event.get("cat") != "wait":
            found.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    return found


def threads(events, name):
    return {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == name}


def overlap_us(some, others):
    """Returns the microseconds in which slices of both lists ran; the slices of one list do not overlap."""
    total, i, j = 0, 0, 0
    some, others = sorted(some), sorted(others)
    while i < len(some) and j < len(others):
        total += max(0, min(some[i][1], others[j][1]) - max(some[i][0], others[j][0]))
        i, j = (i + 1, j) if some[i][1] < others[j][1] else (i, j + 1)
    return total


def timeline(context):
    if context.device == "cuda":
        context.need_gpu()
    ranks = 2
    share = ["--ranks-per-device", ranks] if context.device == "cuda" and context.gpus < ranks else []
    path = context.folder / "zero3_trace.json"
    path.unlink(missing_ok=True)
    settings = LARGE if context.device == "cuda" and not context.small else SMALL
    done, _ = context.train("plans/zero3.lua", ranks, context.device, "--trace", path, *share, settings=settings, timeout=100)
    if not done.ok:
        return Verdict(False, note=done.why())
    events = json.loads(path.read_text())["traceEvents"]
    by_thread, compute = slices(events), threads(events, "compute")
    idle = [key for key in compute if sum(end - begin for begin, end in by_thread.get(key, [])) <= 0]
    if len(compute) != ranks or idle:
        return Verdict(False, note=f"{len(compute)} of {ranks} ranks have a compute stream, {len(idle)} of them without time in it")
    ran = sum(end - begin for key in compute for begin, end in by_thread[key])
    beside = sum(overlap_us(by_thread[key], spans) for key in compute for other, spans in by_thread.items()
                 if other[0] == key[0] and other not in compute)
    figure = f"{sum(map(len, by_thread.values()))} slices, communication overlaps {beside / ran:.0%} of compute"
    if context.device == "cuda" and not share and beside == 0:
        return Verdict(False, figure, "some overlap", "no communication ran while its rank computed")
    return Verdict(True, figure, "every stream's times" if share or context.device != "cuda" else "some overlap")


def checks(_context):
    return [Check("zero3 on two ranks", timeline, timeout=120, least=30)]


PART = Part("trace", "the timeline", checks, limit=60, uses=("prun", "cuda", "shm", "nccl", "lua", "plans/zero3.lua"))
