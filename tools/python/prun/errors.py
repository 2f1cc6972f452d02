"""Exceptions of the package: one type per exit code of the prun command (README.md, "When something fails").

All derive from PrunError, so that one `except` catches them.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class PrunError(Exception):
    """A command of prun failed.

    `exit_code`: that of the command, 0 = no command was started. `output`: what it printed on standard error.
    `next`: a command or an action that may help, "" = none. `rows`: the rows of metrics before the failure.
    """

    def __init__(self, message: str, *, exit_code: int = 0, output: str = "", next: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.output = output
        self.next = next
        self.rows: list[dict[str, Any]] = []


class CheckFailed(PrunError):
    """Exit code 1: a requested check failed, for example a proof."""


class UsageError(PrunError):
    """Exit code 2: an option, a file, a transport or a device is wrong or missing."""


class PlanError(PrunError):
    """Exit code 3: the plan is wrong, or does not fit the mesh.

    `file` and `line`: the place in the plan, a strategy or a model; "" and 0 = unknown.
    """

    def __init__(self, message: str, *, file: str = "", line: int = 0, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.file = file
        self.line = line


class JobFailed(PrunError):
    """A job ended early.

    `rank`: the rank at fault, -1 = unknown. `op`: what it ran. `file` and `line`: the place of the op in the plan or in
    prun's Lua library, "" and 0 = unknown. `evidence`: how prun detected it. `run`: the kept folder, "" = none.
    """

    def __init__(self, message: str, *, rank: int = -1, op: str = "", file: str = "", line: int = 0, evidence: str = "",
                 run: str = "", **rest: Any) -> None:
        super().__init__(message, **rest)
        self.rank = rank
        self.op = op
        self.file = file
        self.line = line
        self.evidence = evidence
        self.run = run


class RankFailed(JobFailed):
    """Exit code 10: a rank crashed, or its GPU failed."""


class Hang(JobFailed):
    """Exit code 11: a collective waited longer than `timeout` seconds."""


class CollectiveMismatch(JobFailed):
    """Exit code 12: ranks called different collectives."""


class JoinFailed(JobFailed):
    """Exit code 13: a rank or node did not join, or did not authenticate."""


class TransportError(JobFailed):
    """Exit code 14: a transport or port could not be set up, or lacks a feature that the plan needs."""


class CheckpointWriteError(JobFailed):
    """Exit code 15: a checkpoint could not be written."""


class CheckpointError(JobFailed):
    """Exit code 16: a checkpoint is damaged, or of another model."""


class LinkError(JobFailed):
    """Exit code 17: a link is down, its data corrupt, or ranks no longer hold the same."""


class OutOfMemory(JobFailed):
    """Exit code 18: out of memory at run time. A plan that does not fit before launch is a PlanError."""


class ScriptLimit(JobFailed):
    """Exit code 19: the script ran too long or took too much memory."""


class NonFinite(JobFailed):
    """Exit code 20: a NaN or an infinity (`check_finite`, `non_finite`)."""


class FeedFailed(JobFailed):
    """Exit code 21: the process that feeds a job with batches died, failed or did not come."""


class Preempted(JobFailed):
    """Exit code 75: stopped by SIGTERM after a checkpoint; `resume="auto"` continues."""


class Killed(JobFailed):
    """Exit code 128 + n: ended by signal n. `signal`: n."""

    @property
    def signal(self) -> int:
        return self.exit_code - 128


BY_EXIT_CODE: Mapping[int, type[PrunError]] = {
    1: CheckFailed, 2: UsageError, 3: PlanError, 10: RankFailed, 11: Hang, 12: CollectiveMismatch, 13: JoinFailed,
    14: TransportError, 15: CheckpointWriteError, 16: CheckpointError, 17: LinkError, 18: OutOfMemory, 19: ScriptLimit,
    20: NonFinite, 21: FeedFailed, 75: Preempted}  # fmt: skip

_PLACE = re.compile(r"(?:^|.* at |.*, )(?P<file>[^\s:,]+\.lua):(?P<line>\d+)", re.DOTALL)
_PLAN_PLACE = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+): ")


def _place(pattern: re.Pattern[str], *texts: str) -> dict[str, Any]:
    for text in texts:
        if found := pattern.match(text):
            return {"file": found["file"], "line": int(found["line"])}
    return {}


def error_of(exit_code: int, answer: Mapping[str, Any], output: str) -> PrunError:
    """Returns the exception for a command that ended with `exit_code`.

    `answer`: the command's JSON object, {} = it printed none. `output`: its standard error.
    """
    failure = answer.get("failure") or {}
    lines = [line.removeprefix("prun: ") for line in output.splitlines() if line.startswith("prun: ")]
    last = lines[-1] if lines else output.strip().rsplit("\n", 1)[-1] or f"prun ended with exit code {exit_code}"
    message = str(failure.get("what") or answer.get("error") or last)
    rest = {"exit_code": exit_code, "output": output, "next": failure.get("next", "")}
    kind = BY_EXIT_CODE.get(exit_code, Killed if exit_code > 128 else PrunError)
    if issubclass(kind, PlanError):
        return kind(message, **_place(_PLAN_PLACE, message), **rest)
    if not issubclass(kind, JobFailed):
        return kind(message, **rest)
    rank = re.search(r"\brank (\d+)", failure.get("who", "") or message)
    kept = re.search(r"^  kept: +(\S+)", output, re.MULTILINE)
    op = failure.get("op", "")
    return kind(message, rank=int(rank[1]) if rank else -1, op=op, evidence=failure.get("evidence", ""),
                run=kept[1] if kept else "", **_place(_PLACE, op, message), **rest)
