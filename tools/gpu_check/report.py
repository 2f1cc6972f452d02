"""One report of all results: report.md for readers, report.json for programs, and the line that each part prints."""
import collections
import dataclasses
import json

from gpu_check.bars import BARS
from gpu_check.results import CUT, FAIL, IMPOSSIBLE, PASS

WORDS = {PASS: "pass", FAIL: "**FAIL**", IMPOSSIBLE: "not possible here", CUT: "cut off, asked again by the next call"}
MOST = 400  # upper bound in characters for the failures and figures in a part's line


def cell(text):
    return " ".join(str(text).replace("|", "\\|").split())


def counts(results):
    found = collections.Counter(result.status for result in results)
    return {status: found[status] for status in (PASS, FAIL, IMPOSSIBLE)}


def remedy(result):
    """Returns the results of a failed check's remedies, as the end of its note."""
    if result.cured:
        return f"; passes with {' or '.join(result.cured)}"
    return f"; fails also with {', '.join(result.tried)}" if result.tried else ""


def line(elapsed, part, results, kept, cut, seconds, changed):
    """Returns a part's results in one line: "  41 s  ops  12 pass, 1 FAIL in 20 s of 110: FAIL Rows: ...; passes with
    cudnn=0"."""
    n = counts(results)
    parts = [f"{n[PASS]} pass"] + [f"{count} {word}" for count, word in ((n[FAIL], "FAIL"), (n[IMPOSSIBLE], "not possible here"), (cut, "not reached"),
                                                                         (kept, "known from before")) if count]
    words = [f"FAIL {r.name}: {r.note}{remedy(r)}" for r in results if r.status == FAIL]
    words += [f"{r.name}: {r.figure}" for r in results if r.status in (PASS, CUT) and r.figure and len(results) <= 4]
    words += [f"{r.name}: {r.note}" for r in results if r.status == IMPOSSIBLE][:1]
    words += [f"asked again because of another {', '.join(changed)}"] if changed else []
    text = cell("; ".join(words)).replace("\\|", "|")
    return (f"{elapsed:4.0f} s  {part.name:<13} {', '.join(parts)} in {seconds:.0f} s of {part.limit:.0f}"
            f"{': ' + text[:MOST] if text else ''}{' ...' if len(text) > MOST else ''}")


def headline(machine, results, left):
    n = counts(results)
    text = f"{n[PASS]} passed, {n[FAIL]} failed, {n[IMPOSSIBLE]} not possible here"
    if left:
        text += f", {len(left)} not reached yet (the same command goes on)"
    if machine["device"] != "cuda":
        return f"{text}. Device {machine['device']}: nothing here ran on a GPU."
    if machine["small"]:
        text += ". **Tiny sizes (--small): its figures mean nothing**"
    return text + ("." if machine["gpus"] else f". **Nothing here ran on a GPU: {machine['problem']}.**")


def row(cells):
    return "| " + " | ".join(cell(text) for text in cells) + " |"


def rows(table):
    """Formats a table whose first row holds the titles."""
    return [row(table[0]), "|" + "---|" * len(table[0]), *map(row, table[1:])]


def answers(results, bars):
    """Returns a row for each headline figure, including those not measured yet."""
    found = {r.name: r for r in results}
    lines = [["what", "bar", "measured", "holds"]]
    for name, bar in bars.items():
        r = found.get(name)
        holds = {PASS: "yes", FAIL: "**no**: ", IMPOSSIBLE: "not possible here: ", CUT: ""}[r.status] + r.note if r else "not asked yet"
        lines.append([name, bar, r.figure if r else "", holds])
    return lines


def section(part, results):
    lines = [["check", "result", "figure", "bar", "seconds", "command"]]
    for r in results:
        lines.append([r.name, WORDS[r.status] + (f": {r.note}" if r.note else "") + remedy(r), r.figure, r.bar, f"{r.seconds:.0f}", f"`{r.command}`" if r.command else ""])
    text = ["", f"## {part.name}: {part.title}", "", *rows(lines)]
    for r in results:
        if r.table:
            text += ["", f"{r.name}:", "", *rows(r.table)]
    return text


def markdown(machine, results, left, parts, bars):
    lines = ["# prun on GPUs: what was checked", "", headline(machine, results, left), ""]
    lines += [f"- {name}: {cell(value)}" for name, value in machine["about"].items()]
    lines += ["", "## The figures that were asked for", "", *rows(answers(results, bars))]
    failed = [r for r in results if r.status == FAIL]
    if failed:
        lines += ["", "## What failed", ""] + [f"- {cell(r.part)}, {cell(r.name)}: {cell(r.note)}{remedy(r)}{f' (`{r.log}`)' if r.log else ''}" for r in failed]
    for part in parts:
        of_part = [r for r in results if r.part == part.name]
        if of_part:
            lines += section(part, of_part)
    if left:
        lines += ["", "## Not reached yet", ""] + [f"- {cell(part)}: {cell(name)}" for part, name in left]
    return "\n".join(lines) + "\n"


def write(folder, machine, results, left, parts, bars=BARS):
    (folder / "report.md").write_text(markdown(machine, results, left, parts, bars))
    (folder / "report.json").write_text(json.dumps({
        "machine": machine, "counts": counts(results), "complete": not left,
        "left": [f"{part}: {name}" for part, name in left], "results": [dataclasses.asdict(r) for r in results]}, indent=1) + "\n")
