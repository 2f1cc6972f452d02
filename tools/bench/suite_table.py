"""The results of suite.py as one file: a summary, and a table for each part. Measures nothing.

A later run reads the file again: lines that it does not measure remain unchanged.
"""
import dataclasses
import re
import textwrap

from rows import number

PARTS = {
    "limits": "What the machine can do at most, in registers and in memory",
    "products": "GEMMs on one core against the fastest of OpenBLAS, BLIS and PyTorch",
    "kernels": "Kernels on one core: attention compared with a GEMM, the others with the slower of memory and arithmetic",
    "overlap": "Communication that compute waits for",
    "collectives": "Collectives against the best of Open MPI and Gloo; the limit is what copying allows",
    "line": "Collectives between two hosts, on a line of 1 Gbit/s and 20 ms there and back",
    "steps": "Training steps against PyTorch; model FLOPs compared with the peak of all cores",
    "gpt2": "GPT-2 124M against PyTorch",
    "scale": "Many ranks on one machine",
}
UNITS = {"GFLOP/s": 1e9, "GB/s": 1e9}

UNDONE = "## Not measured yet"


@dataclasses.dataclass
class Table:
    """The contents of an existing table, or nothing."""
    title: str = "# Figures of a machine"
    hardware: str = ""
    days: list = dataclasses.field(default_factory=list)
    commits: list = dataclasses.field(default_factory=list)
    rounds: list = dataclasses.field(default_factory=list)
    lines: dict = dataclasses.field(default_factory=dict)  # {part: {what: line}}
    undone: list | None = None  # jobs; None: no table

    def is_of(self, machine):
        """Whether the machine is of the same kind; memory and kernel may differ."""
        return self.hardware.rsplit(", ", 2)[0] == hardware_of(machine).rsplit(", ", 2)[0]

    def add(self, entries):
        """Adds the title and the machine descriptions of suite.py's new results."""
        for machine in (entry["machine"] for entry in entries):
            self.title, self.hardware = f"# Figures of {machine['cpu']}, {machine['isa']}", hardware_of(machine)
            for of_all, one in ((self.days, machine["day"]), (self.commits, machine["commit"]), (self.rounds, machine["rounds"])):
                if one not in of_all:
                    of_all.append(one)


def hardware_of(machine):
    return f"{machine['cpu']} ({machine['isa']}), {machine['cores']} cores, {machine['caches']}, {machine['memory_gib']:.0f} GiB, Linux {machine['kernel']}"


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read(text):
    """Returns the Table that `write` wrote, or an empty one for any other text."""
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    about = re.search(r"not by hand\. (.*); (.*), prun (.*); medians of (.*) rounds", " ".join(head.split()))
    if not about:
        return Table()
    table = Table(text.split("\n", 1)[0], about[1], about[2].split(" to "), about[3].split(", "), [int(n) for n in about[4].split(" or ")], undone=[])
    parts = {f"## {title}": part for part, title in PARTS.items()}
    for section in sections:
        title, body = section.split("\n", 1)
        if title == UNDONE:
            table.undone = " ".join(body.split()).removesuffix(".").split(", ")
        elif title in parts:
            rows = [line for line in body.splitlines() if line.startswith("| ")][1:]
            table.lines[parts[title]] = {cells_of(line)[0]: line for line in rows}
    return table


def limits_of(lines):
    """Returns {name: (value in the basic unit, text)} of the lines of `limits`."""
    found = {}
    for what, line in lines.items():
        value, unit = cells_of(line)[1].rsplit(" ", 1)
        found[what] = float(value.replace(",", "")) * UNITS[unit], f"{what} {value} {unit}"
    return found


def beside_limit(row, limits):
    """Returns (limit, share) as text."""
    if "limit" in row:
        return row["limit"], f"{row['share']:.0%}" if "share" in row else ""
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
    cores = f", cores at {row['disturbed']:.0%}" if "disturbed" in row else ""
    return f"| {row['what']} | {number(row['prun'])} {row['unit']}{cores} | {peer} | {ratio} | {row['bar'] or ''} | {mark(row)} | {limit} | {share} |"


def lines_of(entries, before, limits):
    """Returns {what: line} of a part: earlier lines, with new measurements in their positions or appended."""
    found = dict(before)
    for entry in entries:
        found.pop(entry["job"], None)  # its former reason
        found.update((row["what"], line(row, limits)) for row in entry["rows"])
        if entry["error"]:
            found[entry["job"]] = line({"what": entry["job"], "error": entry["error"]}, limits)
    return found


def section(part, lines):
    head = ["| what | prun | peer | ratio | bar | | limit | of it |", "|---|---|---|---|---|---|---|---|"]
    return ["", f"## {PARTS[part]}", "", *head, *lines.values()]


def count(lines):
    """Returns (bars, reached, number that did not run, names of missed bars)."""
    cells = [cells_of(line) for line in lines.values()]
    return sum(bool(each[5]) for each in cells), sum(each[5] == "reached" for each in cells), sum(each[1].startswith("did not run") for each in cells)


def paragraph(text):
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


def write(entries, undone, table):
    """Returns (text, bars missed, number that did not run); `entries`: suite.py's state, in the order of the table;
    `table`: the previous table.
    """
    table.add(entries)
    about = "Written by `tools/bench/suite.py`; not by hand."
    if table.hardware:
        days, rounds = sorted(table.days), " or ".join(map(str, sorted(table.rounds)))
        about += (f" {table.hardware}; {' to '.join(dict.fromkeys([days[0], days[-1]]))}, prun {', '.join(table.commits)}; "
                  f"medians of {rounds} rounds, all sides in turn.")
    lines, limits, counts = {}, {}, {}
    for part in PARTS:
        found = lines_of([entry for entry in entries if entry["part"] == part], table.lines.get(part, {}), limits)
        if part == "limits":
            limits = limits_of({what: row for what, row in found.items() if "did not run" not in row})
        if found:
            lines[part], counts[part] = found, count(found)
    text = [table.title, "", *paragraph(about), "", "| part | bars | reached | missed | did not run |", "|---|---|---|---|---|"]
    text += [f"| {part} | {bars} | {reached} | {bars - reached} | {failed} |" for part, (bars, reached, failed) in counts.items()]
    for part, found in lines.items():
        text += section(part, found)
    if undone:
        text += ["", UNDONE, "", *paragraph(", ".join(undone) + ".")]
    return "\n".join(text) + "\n", sum(bars - reached for bars, reached, _ in counts.values()), sum(failed for _, _, failed in counts.values())
