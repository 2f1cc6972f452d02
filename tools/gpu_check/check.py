"""A part is a list of checks with a time limit; a check is a function that returns a Verdict."""
import dataclasses
import re
import time
from collections.abc import Callable

from gpu_check.results import CUT, FAIL, IMPOSSIBLE, PASS, NotPossible, Result


@dataclasses.dataclass
class Verdict:
    ok: bool
    figure: str = ""
    bar: str = ""
    note: str = ""
    table: list = dataclasses.field(default_factory=list)  # see Result


@dataclasses.dataclass
class Check:
    name: str
    ask: Callable  # (context) -> Verdict; may raise NotPossible
    timeout: float = 120
    least: float = 5  # seconds of the budget that must be left for the check to start
    remedies: tuple = ()  # names of remedies.REMEDIES, tried in this order if the check fails
    uses: tuple = ()  # files besides those of the part (keys.py)


@dataclasses.dataclass
class Part:
    name: str
    title: str
    checks: Callable  # (context) -> [Check]
    limit: float = 120  # seconds, with a budget
    together: int = 1  # concurrent checks
    uses: tuple = ("prun", "cuda", "lua")  # names of keys.FILES, or paths from the top; a result is valid until one of them changes
    kept: bool = True  # False: runs in every call


def perform(context, part, check):
    """Runs the check in `context.of_check`. Returns its Result, whatever the check raises."""
    start = time.monotonic()
    name = re.sub(r"[^\w.-]+", "_", f"{part.name}_{check.name}{f' {context.remedy.name}' if context.remedy else ''}")
    context = context.of_check(name, start + check.timeout * context.patience)
    result = Result(part.name, check.name, FAIL)
    try:
        verdict = check.ask(context)
        result.status = PASS if verdict.ok else FAIL
        result.figure, result.bar, result.note, result.table = verdict.figure, verdict.bar, verdict.note, verdict.table
    except NotPossible as reason:
        result.status, result.note = IMPOSSIBLE, str(reason)
    except Exception as error:  # a faulty check must not stop the others
        result.note = f"the check failed: {type(error).__name__}: {error}"
    if context.cut:
        result.status, result.note = CUT, "cut off before its end"
    result.seconds = round(time.monotonic() - start, 1)
    result.command = context.commands[-1] if context.commands else ""
    result.log = str(context.log) if context.log.exists() else ""
    return result
