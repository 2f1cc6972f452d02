"""A step's time by groups of ops: measured in a trace, next to the cost model's prediction and the hardware's lower
bound.

A traced run enqueues each op by itself, between two events. A replayed step overlaps their launches, so it takes less
than the sum.
"""
import collections
import json
import re

CLUSTERS = {"H200": "h200", "H100": "dgx-h100", "A100": "dgx-a100", "V100": "v100"}  # in plans/clusters, by a part of the GPU's name
# Every op at the data sheet's peak: the lower bound for any kernel.
IDEAL = "device: { sustained: 1, half_k: 0.001, flash: 1, memory_efficiency: 1, launch: 0 us, optimizer_bytes: 30, bus_slowdown: 1, network_slowdown: 1 }\n"
# The cost model sees ops before the CUDA device fuses them; groups cover both. A kind without a group is its own group.
GROUPS = {
    "forward GEMMs": r"linear(_gelu)?|gelu",
    "dx": r"(linear|gelu)_dx|linear_dx_gelu",
    "dW with bias gradients": r"(linear_dw|bias_grad)(_add)?|column_sums",
    "attention": r"attention",
    "attention's gradient": r"attention_grad",
    "loss with gradient": r"cross_entropy(_and)?(_grad)?",
    "norms and residuals": r"(add_)?layernorm(_grad)?(_add)?|add",
    "AdamW, norm2, embedding": r"adamw(_cast)?|norm2|clip_coefficient|embedding(_grad)?",
}
EPILOGUES = re.compile(r"gelu(_dx)?")  # fused into a GEMM they have no memory traffic of their own, so the floor omits them


def group_of(kind):
    return next((group for group, kinds in GROUPS.items() if re.fullmatch(kinds, kind)), kind)


def measured(events, warmup=2):
    """Returns {kind: (ops per step, seconds per step)} on the compute streams of rank 0, without the first steps."""
    steps = collections.defaultdict(lambda: collections.defaultdict(list))
    for event in events:
        if event["ph"] == "X" and event["pid"] == 0 and event.get("cat") not in ("wait", "host") and "step" in event.get("args", {}):
            steps[event["args"]["step"]][event["name"].split(" ")[0]].append(event["dur"] * 1e-6)
    chosen = sorted(steps)[warmup:] or sorted(steps)[-1:]
    kinds = {kind for step in chosen for kind in steps[step]}
    return {kind: (max(len(steps[step][kind]) for step in chosen), sum(sum(steps[step][kind]) for step in chosen) / len(chosen)) for kind in kinds}


def read(path):
    """Returns `measured` of a trace file; {} if it is missing or truncated."""
    try:
        return measured(json.loads(path.read_text())["traceEvents"])
    except (OSError, ValueError, KeyError):
        return {}


def grouped(seconds):
    """Returns {group: seconds} of {kind: seconds}."""
    found = {}
    for kind, s in seconds.items():
        found[group_of(kind)] = found.get(group_of(kind), 0) + s
    return found


def table(found, predicted, floor):
    """Returns the rows, slowest group first. `found`: the result of `measured`; `predicted` and `floor`: {kind:
    seconds}, {} for an unknown GPU."""
    def ms(seconds):
        return "" if seconds is None else f"{seconds * 1e3:.2f}"

    times, counts = grouped({kind: s for kind, (_, s) in found.items()}), grouped({kind: n for kind, (n, _) in found.items()})
    floor = grouped({kind: s for kind, s in floor.items() if kind in found or not EPILOGUES.fullmatch(kind)})
    predicted = grouped(predicted)
    rows = [["part of the step", "ops", "measured, ms", "floor, ms", "measured / floor", "predicted, ms", "of which, ms"]]
    for group in sorted(times.keys() | predicted.keys(), key=lambda group: (-times.get(group, 0), -predicted.get(group, 0), group)):
        kinds = sorted((kind for kind in found if group_of(kind) == group), key=lambda kind: -found[kind][1])
        seconds, least = times.get(group), floor.get(group)
        rows.append([group, str(counts.get(group, 0)), ms(seconds), ms(least), f"{seconds / least:.2f}" if seconds and least else "", ms(predicted.get(group)),
                     ", ".join(f"{kind} {ms(found[kind][1])}" for kind in kinds) if kinds != [group] else ""])
    sums = [sum(times.values()), sum(floor.values()) if floor else None, sum(predicted.values()) if predicted else None]
    return [*rows, ["sum", str(sum(counts.values())), ms(sums[0]), ms(sums[1]), f"{sums[0] / sums[1]:.2f}" if sums[1] else "", ms(sums[2]), ""]]


def cluster_of(gpu):
    """Returns the name of the cluster file that describes the GPU, or None."""
    return next((cluster for part, cluster in CLUSTERS.items() if part in gpu), None)


def ideal_cluster(top, cluster, folder):
    path = folder / f"ideal-{cluster}.yaml"
    path.write_text(f"include: {top / 'plans/clusters' / (cluster + '.yaml')}\nname: the floor\n{IDEAL}")
    return path


def seconds_by_kind(out):
    """Returns ({kind: seconds}, the step's seconds) of `prun sim --json`; ({}, None) if it failed."""
    try:
        found = json.loads(out)
        return {kind: s for kind, s in found["classes"][0]["op_s"].items() if s > 0}, found["step_s"]
    except (ValueError, KeyError, IndexError):
        return {}, None
