"""Splits the exposed communication of a trace (`--trace`) into transfers and waits for late ranks.

A collective starts to move data when its last member arrives. The wait of the others until then is compute imbalance,
which no order of ops can hide; the remainder is the transfer.
"""
import bisect
import json
import pathlib
from collections import defaultdict


def overlap(begin, end, spans):
    """Returns how much of [begin, end) is covered by the sorted, disjoint spans."""
    at = bisect.bisect_right(spans, (begin, float("inf"))) - 1
    return sum(max(0.0, min(end, to) - max(begin, start)) for start, to in spans[max(at, 0):bisect.bisect_left(spans, (end,))])


def read(path, skip):
    """Returns seconds per step, averaged over ranks and steps after the first `skip`: communication, its exposed part,
    and both without waits for late ranks.
    """
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    late, starts, arrows = defaultdict(list), {}, {}
    for event in events:
        place = event.get("pid"), event.get("tid")
        if event["ph"] == "X" and event["name"].startswith("(wait for rank"):
            late[place].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "s" and event["name"] == "edge":
            starts[event["id"]] = place, event["ts"]
        elif event["ph"] == "f" and event["name"] == "edge" and event["id"] in starts:
            (source, left), key = starts[event["id"]], (*place, event["ts"])
            arrows[key] = max(arrows.get(key, (0.0, None)), (left, source))  # the last op that it waited for
    for spans in late.values():
        spans.sort()
    sums, steps, ranks = defaultdict(float), set(), set()
    for event in events:
        if event["ph"] != "X" or event.get("args", {}).get("step", -1) < skip:
            continue
        place, begin, end = (event["pid"], event["tid"]), event["ts"], event["ts"] + event["dur"]
        steps.add(event["args"]["step"])
        ranks.add(event["pid"])
        if event["cat"] == "communication":
            kinds = ("comm", "exposed") if event["tid"] == 0 else ("comm",)
            for kind in kinds:
                sums[kind] += event["dur"]
                sums[f"{kind}_late"] += overlap(begin, end, late[place])
        elif event["cat"] == "wait" and event["tid"] == 0:
            source = next((found[1] for key, found in arrows.items() if key[:2] == place and abs(key[2] - end) < 0.002), None)
            if source is not None and source[1] != 0:
                sums["exposed"] += event["dur"]
                sums["exposed_late"] += overlap(begin, end, late[source])
    each = 1e6 * len(steps) * len(ranks)
    comm, exposed = sums["comm"] / each, sums["exposed"] / each
    return {"comm_s": comm, "exposed_s": exposed, "transfer_s": comm - sums["comm_late"] / each,
            "exposed_transfer_s": exposed - sums["exposed_late"] / each}
