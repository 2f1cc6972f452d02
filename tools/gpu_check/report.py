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
    return text + ("." if machine["gpus"] else f". **Nothing here ran on a GPU: {machine['problem']}.**")


def markdown(machine, results, left, steps):
    lines = ["# prun on GPUs: what was checked", "", headline(machine, results, left), ""]
    lines += [f"- {name}: {cell(value)}" for name, value in machine["about"].items()]
    for step in steps:
        rows = [r for r in results if r.step == step.name]
        if not rows:
            continue
        lines += ["", f"## {step.name}: {step.title}", "", "| check | result | figure | bar | command |", "|---|---|---|---|---|"]
        for r in rows:
            result = WORDS[r.status] + (f": {r.note}" if r.note else "")
            lines.append(f"| {cell(r.name)} | {cell(result)} | {cell(r.figure)} | {cell(r.bar)} | {'`' + cell(r.command) + '`' if r.command else ''} |")
    failed = [r for r in results if r.status == FAIL and r.log]
    if failed:
        lines += ["", "## Logs of what failed", ""] + [f"- {cell(r.step)}, {cell(r.name)}: `{r.log}`" for r in failed]
    if left:
        lines += ["", "## Not reached yet", ""] + [f"- {cell(step)}: {cell(name)}" for step, name in left]
    return "\n".join(lines) + "\n"


def write(folder, machine, results, left, steps):
    (folder / "report.md").write_text(markdown(machine, results, left, steps))
    (folder / "report.json").write_text(json.dumps({
        "machine": machine, "counts": counts(results), "complete": not left,
        "left": [f"{step}: {name}" for step, name in left], "results": [dataclasses.asdict(r) for r in results]}, indent=1) + "\n")
