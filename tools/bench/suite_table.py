"""What suite.py measured, as one file: a summary, and a table for each part. Measures nothing."""
import textwrap

from rows import number

PARTS = {
    "limits": "What the machine can do at most, in registers and in memory",
    "products": "Matrix products on one core against the fastest of OpenBLAS, BLIS and PyTorch",
    "kernels": "Kernels on one core: attention beside a product, the others beside the slower of memory and arithmetic",
    "overlap": "Communication that compute waits for",
    "collectives": "Collectives against the best of Open MPI and Gloo; the limit is what copying allows",
    "steps": "Training steps against PyTorch; model FLOPs beside the peak of all cores",
    "gpt2": "GPT-2 124M against llm.c and PyTorch",
    "scale": "Many ranks on one machine",
}
UNITS = {"GFLOP/s": 1e9, "GB/s": 1e9}


def limits_of(entries):
    """{name: (value in the basic unit, text)}"""
    found = {}
    for entry in entries:
        for row in entry["rows"] if entry["part"] == "limits" else ():
            found[row["what"]] = row["prun"] * UNITS[row["unit"]], f"{row['what']} {number(row['prun'])} {row['unit']}"
    return found


def beside_limit(row, limits):
    """(limit, share) as text"""
    if "share" in row:
        return row["limit"], f"{row['share']:.0%}"
    name, rate = row.get("rate", (None, None))
    if name not in limits:
        return "", ""
    value, text = limits[name]
    return text, f"{rate / value:.0%}"


def mark(row):
    return {True: "reached", False: "**missed**", None: ""}[row["reached"]]


def line(row, limits):
    if "error" in row:
        return f"| {row['what']} | did not run: {row['error'].replace('|', '/')} | | | | **missed** | | |"
    limit, share = beside_limit(row, limits)
    peer = "" if row["peers"] is None else f"{row['peer']} {number(row['peers'])}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    return f"| {row['what']} | {number(row['prun'])} {row['unit']} | {peer} | {ratio} | {row['bar'] or ''} | {mark(row)} | {limit} | {share} |"


def section(part, entries, limits):
    table = [line(row, limits) for entry in entries for row in entry["rows"]]
    table += [f"| {entry['job']} | did not run: {entry['error'].replace('|', '/')} | | | | **missed** | | |" for entry in entries if entry["error"]]
    head = ["| what | prun | peer | ratio | bar | | limit | of it |", "|---|---|---|---|---|---|---|---|"]
    return ["", f"## {PARTS[part]}", "", *head, *table]


def count(entries):
    """(bars, reached, jobs that did not run)"""
    judged = [row["reached"] for entry in entries for row in entry["rows"] if row["reached"] is not None]
    return len(judged), sum(judged), sum(entry["error"] is not None for entry in entries)


def paragraph(text):
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


def write(entries, undone):
    """(text, bars missed, jobs that did not run); `entries` of suite.py's state, in the order of the table."""
    machines = [entry["machine"] for entry in entries]
    m = machines[-1] if machines else None
    about = "Written by `tools/bench/suite.py`; not by hand."
    if m:
        commits = ", ".join(dict.fromkeys(each["commit"] for each in machines))
        days = sorted({each["day"] for each in machines})
        rounds = sorted({each["rounds"] for each in machines})
        about += (f" {m['cpu']} ({m['isa']}), {m['cores']} cores, {m['caches']}, {m['memory_gib']:.0f} GiB, Linux {m['kernel']}; "
                  f"{' to '.join(dict.fromkeys([days[0], days[-1]]))}, prun {commits}; medians of {' or '.join(map(str, rounds))} rounds, all sides in turn.")
    text = [f"# Figures of {m['cpu'] if m else 'a machine'}, {m['isa'] if m else ''}", "", *paragraph(about), "",
            "| part | bars | reached | missed | did not run |", "|---|---|---|---|---|"]
    by_part = {part: [entry for entry in entries if entry["part"] == part] for part in PARTS}
    for part, some in by_part.items():
        bars, reached, failed = count(some)
        if some:
            text.append(f"| {part} | {bars} | {reached} | {bars - reached} | {failed} |")
    limits = limits_of(entries)
    for part, some in by_part.items():
        if some:
            text += section(part, some, limits)
    if undone:
        text += ["", "## Not measured yet", "", *paragraph(", ".join(undone) + ".")]
    bars, reached, failed = count(entries)
    return "\n".join(text) + "\n", bars - reached, failed
