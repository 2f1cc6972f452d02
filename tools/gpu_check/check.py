"""One question and its answer: a step is a list of checks, a check a function that returns a Verdict."""
import dataclasses
import re
import time
from collections.abc import Callable

from gpu_check.results import FAIL, IMPOSSIBLE, PASS, BudgetSpent, NotPossible, Result


@dataclasses.dataclass
class Verdict:
    ok: bool
    figure: str = ""
    bar: str = ""
    note: str = ""
    table: list = dataclasses.field(default_factory=list)  # as a Result's


@dataclasses.dataclass
class Check:
    name: str
    ask: Callable  # (context) -> Verdict; may raise NotPossible
    timeout: float = 120
    least: float = 5  # seconds that must be left of the budget for it to be begun


@dataclasses.dataclass
class Step:
    name: str
    title: str
    checks: Callable  # (context) -> [Check]
    of_subject: bool = True  # its results are of the program that is being checked, and kept; else it makes that program


def perform(context, step, check):
    """The check's Result, whatever happens in it; BudgetSpent passes through."""
    start = time.monotonic()
    context.log = context.folder / "logs" / (re.sub(r"[^\w.-]+", "_", f"{step.name}_{check.name}") + ".log")
    context.log.unlink(missing_ok=True)
    context.check_end, context.commands = start + check.timeout, []
    result = Result(step.name, check.name, FAIL)
    try:
        verdict = check.ask(context)
        result.status = PASS if verdict.ok else FAIL
        result.figure, result.bar, result.note, result.table = verdict.figure, verdict.bar, verdict.note, verdict.table
    except NotPossible as reason:
        result.status, result.note = IMPOSSIBLE, str(reason)
    except BudgetSpent:
        raise
    except Exception as error:  # a check that is wrong itself must not stop the others
        result.note = f"the check failed: {type(error).__name__}: {error}"
    result.seconds = round(time.monotonic() - start, 1)
    result.command = context.commands[-1] if context.commands else ""
    result.log = str(context.log) if context.log.exists() else ""
    return result
