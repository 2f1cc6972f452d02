"""Results of real GPUs that the repository keeps, such as tools/bench/results/nvidia-h100.json.

A later run reuses a result if the files and versions in its key are equal, so that a short GPU session answers new
questions only.
"""
import dataclasses
import json
import sys

from gpu_check.results import CUT, IMPOSSIBLE, results_of

FIELDS = ("part", "name", "status", "figure", "bar", "note", "seconds", "table", "cured", "tried", "key")  # omits paths of a machine


def files(top):
    return sorted((top / "tools/bench/results").glob("*.json"))


def problem_of(results, source):
    """Returns why these results must not be kept, or ""."""
    if not results:
        return f"{source} has no results"
    for result in results:
        key = result.key
        if key.get("device") != "cuda" or key.get("GPUs", "none") == "none":
            return f"{source} has results that no GPU gave ({result.part}: {result.name})"
        if key.get("sizes") == "small":
            return f"{source} was made with --small: its figures mean nothing"
    return ""


def kept_form(result):
    found = {name: value for name, value in dataclasses.asdict(result).items() if name in FIELDS}
    return {name: value for name, value in found.items() if value not in ("", [], 0)}


def merge(source, target):
    """Merges `source` into `target`; for the same check, `source` wins. Returns the exit status."""
    if not source.exists():
        print(f"gpu-check: --keep: {source} is not there; --out names the folder of a run", file=sys.stderr)
        return 2
    new = [result for result in results_of(source) if result.status not in (IMPOSSIBLE, CUT)]
    problem = problem_of(new, source)
    if problem:
        print(f"gpu-check: --keep: {problem}", file=sys.stderr)
        return 2
    old = results_of(target) if target.exists() else []
    named = {(r.part, r.name): r for r in [*old, *new]}
    rows = [kept_form(named[name]) for name in sorted(named)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"results": rows}, indent=1, ensure_ascii=False) + "\n")
    print(f"{target}: {len(rows)} results, {len(new)} of them from {source}")
    return 0
