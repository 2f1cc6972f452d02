"""What tools/bench/collectives.py measured, as tables beside the bars and beside what copying allows."""
import statistics

import rows

K, M = 1 << 10, 1 << 20
NOTE = """# Collectives: prun beside its peers

Written by `tools/bench/collectives.py`; not by hand. Times in µs, medians of {rounds} rounds in which all sides are measured in turn; f32, sums. {machine}, {cores} cores, Linux {kernel}, {day}, prun {commit},
{mpi}. TCP congestion control: {congestion} by default, {peer_congestion} for the peers, `cubic` for prun's connections on loopback (its option `congestion`).

`ratio` is the best peer's time over prun's: above 1 prun is faster. `bound`: the time in which all ranks at once copy what the collective must read and write at least, measured in the same
rounds (`peers/copy.cc`). all_reduce reads and writes each rank's S bytes once (2S a rank), as all_gather and all_to_all do; reduce_scatter writes 1/n of what it reads; broadcast copies on all ranks but one. `of it` is
that time's share of prun's. Small copies stay in a core's own cache, where a collective's data cannot: out of reach; copies that just exceed the last cache, which fewer buffers do not, can be beaten. all_reduce
and broadcast are in place, the others not.
"""


def size_text(size):
    return f"{size // M} MiB" if size >= M else f"{size // K} KiB" if size >= K else f"{size} B"


def time_text(us):
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def medians(kept):
    """{(op, ranks, side): {bytes: µs}}, of all rounds without an error; the errors {(op, ranks, side): text}."""
    times, errors = {}, {}
    for row in kept:
        if "run" not in row or row["run"][0] in ("idle", "one_core"):
            continue
        op, ranks, side, _ = row["run"]
        if row["error"]:
            errors[op, ranks, side] = row["error"]
        for result in row["rows"]:
            times.setdefault((op, ranks, side), {}).setdefault(result["bytes"], []).append(result["time_us"])
    return {key: {size: statistics.median(values) for size, values in sizes.items()} for key, sizes in times.items()}, errors


def bound(times, op, ranks, size):
    """Least time that copying allows, or None."""
    def copies(op_of_run, n):
        found = [times[op_of_run, n, side][size] for side in ("copy", "stream") if size in times.get((op_of_run, n, side), {})]
        return min(found) if found else None
    if op == "broadcast":
        return copies("copy", ranks - 1)
    whole = copies(op, ranks)
    return whole and (whole * (1 + 1 / ranks) / 2 if op == "reduce_scatter" else whole)


def judge(transport, op, ranks, cores, size, ours, peers, least):
    """(the bar in words, whether it holds), or (None, None). `peers`: {name: µs}."""
    best = min(peers.values())
    ratio = best / ours
    reduces = op in ("all_reduce", "reduce_scatter")
    if transport == "ucx":
        return ("≥ 0.95", ratio >= 0.95) if size >= 4 * M else (None, None)
    if transport.startswith("socket") and reduces:
        gloo = min((t for name, t in peers.items() if name.startswith("Gloo")), default=None)
        mpi = min((t for name, t in peers.items() if name.startswith("Open MPI")), default=None)
        wanted = 2 if size <= 4 * M else 1.4
        held = (gloo is None or gloo / ours >= wanted) and (mpi is None or mpi / ours >= 1)
        return f"Gloo ≥ {wanted}, MPI ≥ 1", held
    if not reduces:
        if size >= 64 * M and transport == "shm" and least:
            return "≥ 1, of bound ≥ 70 %", ratio >= 1 and least / ours >= 0.7
        return "≥ 1", ratio >= 1
    if size >= 4 * M:
        wanted = 2.5 if ranks <= 2 else 3
        return f"≥ {wanted}", ratio >= wanted
    if size >= 256 * K:
        return "≥ 1.2", ratio >= 1.2
    slack = 0.2 if ranks <= cores else 5
    return f"≤ 1.2 × or + {slack} µs", ours <= 1.2 * best or ours <= best + slack


def row_text(times, transport, op, ranks, cores, size, peers):
    """(a line of the table, whether the bar holds); None without a figure of ours or a peer's."""
    ours = times.get((op, ranks, transport), {}).get(size)
    theirs = {p: times[op, ranks, p][size] for p in peers if size in times.get((op, ranks, p), {})}
    if ours is None:
        return None
    least = bound(times, op, ranks, size)
    limits = f"{time_text(least)} | {100 * least / ours:.0f} %" if least else " | "
    head = f"| {op} | {ranks} | {size_text(size)} | {time_text(ours)} |"
    if not theirs:
        return f"{head} | | | | {limits} |", True
    best = min(theirs, key=theirs.get)
    bar, holds = judge(transport, op, ranks, cores, size, ours, theirs, least)
    verdict = "" if bar is None else f"{bar}: {'yes' if holds else '**no**'}"
    others = {}
    for name, us in theirs.items():  # the best of each library
        library = "Gloo" if name.startswith("Gloo") else "Open MPI"
        if library not in others or us < others[library][0]:
            others[library] = (us, name)
    cells = ", ".join(f"{name} {time_text(us)}" for us, name in sorted(others.values()))
    return f"{head} {cells} | {theirs[best] / ours:.2f} | {verdict} | {limits} |", holds is not False


def write(rows, peers_of):
    """(text, number of bars that do not hold)"""
    machine = {}
    for row in rows:
        machine.update(row.get("machine", {}))
    times, errors = medians(rows)
    text, short = [NOTE.format(**machine) if machine else "nothing is measured yet\n"], 0
    ops = list(dict.fromkeys(op for op, _, _ in times if op != "copy"))
    for transport, peers in peers_of.items():
        lines = []
        for op in ops:
            for ranks in sorted({n for o, n, side in times if o == op and side == transport}):
                for size in sorted(times[op, ranks, transport]):
                    line = row_text(times, transport, op, ranks, machine["cores"], size, peers)
                    if line:
                        lines.append(line[0])
                        short += not line[1]
        if lines:
            text += [f"\n## {transport}\n\n| | ranks | size | prun | best of each peer | ratio | bar | bound | of it |\n"
                     "|---|---|---|---|---|---|---|---|---|\n", "\n".join(lines), "\n"]
    waiting, idle_short = idle_text(rows)
    text.append(waiting)
    if errors:
        text.append("\n## Did not run\n\n" + "".join(f"- {op}, {ranks} ranks, {side}: {why}\n" for (op, ranks, side), why in errors.items()))
    return "".join(text), short + idle_short


def as_rows(kept, peers_of, cores):
    """The same as rows of a suite (rows.py), without errors of peers that were outdone by others of their settings."""
    times, errors = medians(kept)
    for (op, ranks, side), sizes in sorted(times.items()):
        for size, ours in sorted(sizes.items()) if side in peers_of else ():
            theirs = {p: times[op, ranks, p][size] for p in peers_of[side] if size in times.get((op, ranks, p), {})}
            best = min(theirs, key=theirs.get, default=None)
            bar, holds = judge(side, op, ranks, cores, size, ours, theirs, bound(times, op, ranks, size)) if theirs else (None, None)
            least = bound(times, op, ranks, size)
            row = {"what": f"{op}, {ranks} ranks, {size_text(size)}, {side}", "unit": "µs", "prun": ours, "peer": best, "peers": theirs.get(best),
                   "ratio": theirs[best] / ours if theirs else None, "bar": bar, "reached": holds}
            yield {**row, "limit": f"copies {time_text(least)} µs", "share": least / ours} if least else row
    for (op, ranks, side), why in errors.items():
        if side in peers_of and (op, ranks, side) not in times:
            yield rows.failed(f"{op}, {ranks} ranks, {side}", why)


def idle_text(rows):
    """Ranks that wait, and more ranks than cores: (text, bars that do not hold)"""
    lines, short = [], 0
    for row in rows:
        if "run" not in row or row["run"][0] not in ("idle", "one_core"):
            continue
        op, ranks, side, _ = row["run"]
        if row["error"] or not row["rows"]:
            lines.append(f"| {op} | {side} | {ranks} | {row['error']} | **no** |")
            short += 1
        elif op == "idle":
            percent = row["rows"][0]["core_percent"]
            lines.append(f"| a rank that waits a second in a collective | {side} | {ranks} | {percent:.2f} % of a core | < 2 %: {'yes' if percent < 2 else '**no**'} |")
            short += percent >= 2
        else:
            found = ", ".join(f"{size_text(r['bytes'])} in {time_text(r['time_us'])} µs" for r in row["rows"])
            lines.append(f"| all_reduce on one core | {side} | {ranks} | {found} | ends: yes |")
    if not lines:
        return "", 0
    return "\n## Waiting, and more ranks than cores\n\n| | transport | ranks | | bar |\n|---|---|---|---|---|\n" + "\n".join(lines) + "\n", short
