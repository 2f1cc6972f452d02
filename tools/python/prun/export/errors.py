"""The error that the exporter raises: a place in the user's Python, the op, the problem and the likely way round."""
from __future__ import annotations

from ..errors import PrunError


class ExportError(PrunError):
    """A module that no plan can express.

    `file` and `line`: the user's Python line, "" and 0 if there is none; `op`: the operation as PyTorch's export names
    it, "" if none; `problem`: why it cannot be exported; `hint`: the likely way round. `unknown`: the op, if no rule
    recognises it.
    """

    unknown: object = None

    def __init__(self, problem: str, *, file: str = "", line: int = 0, op: str = "", hint: str = "") -> None:
        self.problem, self.file, self.line, self.op, self.hint = problem, file, line, op, hint
        place = f"{file}:{line}: " if file else ""
        super().__init__(f"{place}{op + ': ' if op else ''}{problem}{'; ' + hint if hint else ''}")
