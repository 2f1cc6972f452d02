"""%%prun: a cell of a notebook that is a plan.

    %load_ext prun

    %%prun --nproc 2 --set steps=20
    return prun.plan { ... }

The cell shows a live line and, at the end, the curve of the loss; `_prun_rows` has the rows.
"""
from __future__ import annotations

import importlib
import shlex
from typing import Any

from .errors import PrunError, UsageError
from .job import Row, run

_HEAD = 'local prun = require "prun"'  # in place of the first line, %%prun, so that errors have the cell's line numbers


def options_of(line: str) -> dict[str, Any]:
    """Returns run's keyword arguments for the words of a command line: "--nproc 2 --set steps=3 --prove"."""
    words = shlex.split(line)
    options: dict[str, Any] = {}
    settings: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"%%prun takes options of the command, not '{word}'")
        name, has_value, value = word[2:].partition("=")
        if not has_value and words and not words[0].startswith("--"):
            has_value, value = "=", words.pop(0)
        if name == "set":
            key, _, setting = value.partition("=")
            settings[key] = setting
        else:
            options[name.replace("-", "_")] = value if has_value else True
    return {**options, **({"set": settings} if settings else {})}


def curve(rows: list[Row], width: int = 480, height: int = 140) -> str:
    """Returns an SVG of the loss over the steps, in pixels; "" if fewer than two rows have a loss."""
    points = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
    if len(points) < 2:
        return ""
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    low, high = min(losses), max(losses)
    left, top, right, bottom = 52, 8, width - 8, height - 24
    across, down = (right - left) / max(steps[-1] - steps[0], 1), (bottom - top) / (high - low or 1)
    line = " ".join(f"{left + (step - steps[0]) * across:.1f},{top + (high - loss) * down:.1f}" for step, loss in points)
    labels = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in (
        (left - 6, top + 8, "end", f"{high:.4g}"), (left - 6, bottom, "end", f"{low:.4g}"),
        (left, height - 8, "start", f"step {steps[0]}"), (right, height - 8, "end", steps[-1])))
    return (f'<svg width="{width}" height="{height}" role="img" font-family="sans-serif" font-size="11" fill="currentColor">'
            f"<title>loss from {losses[0]:.4g} to {losses[-1]:.4g}, steps {steps[0]} to {steps[-1]}</title>"
            f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="silver"/>{labels}'
            f'<polyline fill="none" stroke="steelblue" stroke-width="1.5" points="{line}"/></svg>')


def _display_functions() -> tuple[Any, Any]:
    display = importlib.import_module("IPython.display")
    return display.display, display.HTML


def register(shell: Any) -> None:
    """Adds the cell magic to an IPython shell."""

    def cell(line: str, text: str) -> None:
        display, HTML = _display_functions()

        handle = display(HTML("starts ..."), display_id=True)

        def show(row: Row) -> None:
            if "loss" in row:
                loss = "not finite" if row["loss"] is None else f"{row['loss']:.4g}"
                handle.update(HTML(f"step {row['step']}, loss {loss}, {row['time_s']:.3g} s"))

        plan = ("" if "require" in text else _HEAD) + "\n" + text + "\n"
        try:
            rows = run(plan, on_step=show, **options_of(line))
        except PrunError as error:
            message = str(error)
            if (file := getattr(error, "file", "")).endswith("/plan.lua"):
                message = message.replace(file, "cell")  # the temporary file of the text
            print(f"prun: {message}" + (f"\n  next: {error.next}" if error.next else ""))
            rows = error.rows
            if not rows:
                handle.update(HTML(""))
        shell.user_ns["_prun_rows"] = rows
        if picture := curve(rows):
            display(HTML(picture))

    shell.register_magic_function(cell, magic_kind="cell", magic_name="prun")
