"""One report of all results: report.md for people, report.json for programs."""
import collections
import dataclasses
import json

from gpu_check.results import FAIL, IMPOSSIBLE, PASS

WORDS = {PASS: "pass", FAIL: "**FAIL**", IMPOSSIBLE: "not possible here"}


def cell(text):
    return " ".join(str(text).replace("|", "\\|").split())


def counts(results):
    found = collections.Counter(result.status for result in results)
    return {status: found[status] for status in (PASS, FAIL, IMPOSSIBLE)}


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
    """A table whose first row holds the titles."""
    return [row(table[0]), "|" + "---|" * len(table[0]), *map(row, table[1:])]


def answers(results, bars):
    """What the issue wants to know of speed, a line each, those that have no answer, too."""
    found = {r.name: r for r in results}
    lines = [["what", "bar", "measured", "holds"]]
    for name, bar in bars.items():
        r = found.get(name)
        holds = {PASS: "yes", FAIL: "**no**: ", IMPOSSIBLE: "not possible here: "}[r.status] + r.note if r else "not asked yet"
        lines.append([name, bar, r.figure if r else "", holds])
    return lines


def section(step, results):
    lines = [["check", "result", "figure", "bar", "seconds", "command"]]
    for r in results:
        lines.append([r.name, WORDS[r.status] + (f": {r.note}" if r.note else ""), r.figure, r.bar, f"{r.seconds:.0f}", f"`{r.command}`" if r.command else ""])
    text = ["", f"## {step.name}: {step.title}", "", *rows(lines)]
    for r in results:
        if r.table:
            text += ["", f"{r.name}:", "", *rows(r.table)]
    return text


def markdown(machine, results, left, steps, bars):
    lines = ["# prun on GPUs: what was checked", "", headline(machine, results, left), ""]
    lines += [f"- {name}: {cell(value)}" for name, value in machine["about"].items()]
    lines += ["", "## The figures that were asked for", "", *rows(answers(results, bars))]
    failed = [r for r in results if r.status == FAIL]
    if failed:
        lines += ["", "## What failed", ""] + [f"- {cell(r.step)}, {cell(r.name)}: {cell(r.note)}{f' (`{r.log}`)' if r.log else ''}" for r in failed]
    for step in steps:
        of_step = [r for r in results if r.step == step.name]
        if of_step:
            lines += section(step, of_step)
    if left:
        lines += ["", "## Not reached yet", ""] + [f"- {cell(step)}: {cell(name)}" for step, name in left]
    return "\n".join(lines) + "\n"


def write(folder, machine, results, left, steps, bars):
    (folder / "report.md").write_text(markdown(machine, results, left, steps, bars))
    (folder / "report.json").write_text(json.dumps({
        "machine": machine, "counts": counts(results), "complete": not left,
        "left": [f"{step}: {name}" for step, name in left], "results": [dataclasses.asdict(r) for r in results]}, indent=1) + "\n")
