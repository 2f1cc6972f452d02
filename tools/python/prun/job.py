"""prun.run: a training job as a call that returns its rows of metrics.

Rows arrive through a pipe that two threads empty, so that a slow `on_step` never holds up the job.
"""
from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from .command import PathOrText, json_object, option_words, plan_file, raise_failure, start
from .errors import PrunError, UsageError

Row = dict[str, Any]
_ENDED_BY_US = (75, 128 + signal.SIGTERM, -signal.SIGTERM)  # with a checkpoint; without one; before the first step


class _Screen:
    """Copies the command's standard error to ours, except the final failure, which becomes the exception's text."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self.text = ""

    def line(self, line: str) -> None:
        self.text += line
        if line.startswith("prun: "):
            self.flush()
            self._held = [line]
        elif self._held and line.startswith("  "):
            self._held.append(line)
        else:
            self.flush()
            sys.stderr.write(line)

    def flush(self) -> None:
        sys.stderr.write("".join(self._held))
        self._held = []


class _Job:
    """A running command. The rows of its pipe are queued; None follows the last one."""

    def __init__(self, words: list[str]) -> None:
        self.rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self.screen = _Screen()
        self._out = b""
        reader, writer = os.pipe()
        try:
            self._process = start([*words, "--metrics", f"/dev/fd/{writer}", "--json"], pass_fds=[writer],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._threads = [threading.Thread(target=target, daemon=True, args=(file,)) for target, file in (
            (self._read_rows, os.fdopen(reader, "rb")), (self._read_errors, self._process.stderr),
            (self._read_output, self._process.stdout))]
        for thread in self._threads:
            thread.start()

    def _read_rows(self, file: IO[bytes]) -> None:
        with file:
            for line in file:
                if line.endswith(b"\n"):  # a killed job may leave half a line
                    self.rows.put(json.loads(line))
        self.rows.put(None)

    def _read_errors(self, file: IO[bytes]) -> None:
        for line in file:
            self.screen.line(line.decode("utf-8", "replace"))

    def _read_output(self, file: IO[bytes]) -> None:
        self._out = file.read()

    def stop(self) -> None:
        """Ends the job after its step and a checkpoint; a second call ends it at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> tuple[int, dict[str, Any]]:
        """Returns the exit code and the command's JSON object."""
        code = self._process.wait()
        for thread in self._threads:
            thread.join()
        for file in (self._process.stdout, self._process.stderr):
            if file is not None:
                file.close()
        return code, json_object(self._out)

    def end(self) -> None:
        """Ends the job at once; its ranks end with it."""
        self._process.kill()
        self.wait()


def _add(rows: list[Row], row: Row) -> None:
    """Appends a row. Rows of steps that a restart repeats are removed."""
    if "loss" in row:
        while any("loss" in old and old["step"] >= row["step"] for old in rows[-1:]):
            rows.pop()
    rows.append(row)


def _stop_after_interrupt(job: _Job) -> None:
    sys.stderr.write("prun: stops after this step and a checkpoint, if there is a folder for it; Ctrl-C ends it now\n")
    job.stop()
    try:
        job.wait()
    except KeyboardInterrupt:
        job.end()


def run(plan: PathOrText, *, nproc: int = 1, set: Mapping[str, Any] | None = None,
        on_step: Callable[[Row], object] | None = None, quiet: bool = True, **options: Any) -> list[Row]:
    """Trains a plan on `nproc` ranks of this machine and returns the rows of metrics.

    `plan`: a path, or text of several lines. `set`: arguments of the plan, for example {"width": 192}. `on_step`: called
    with each row in this thread; if it returns False, the job ends after its current step, with a checkpoint if
    `checkpoint` names a folder, and run returns. `quiet`: omit step lines, which otherwise go to sys.stderr.
    `options`: those of `prun PLAN`: `checkpoint="runs/a"`, `max_restarts=2`, `device="cuda"`, `prove=True`.

    A row is a dict: "step" from 1, "loss" (mean over the global batch, None if it is not finite), "learning_rate",
    "tokens" so far, "time_s" and "comm_s" in seconds, "tokens_per_s", "memory_bytes"; tools/prun/README.md has all.

    Raises PlanError with file and line for a wrong plan, RankFailed with rank, op and line for a crashed rank, and the
    type of its exit code for every other failure; `rows` of the exception has the rows until then. Ctrl-C stops the job
    after its step and a checkpoint, then raises KeyboardInterrupt. The job ends if this interpreter dies.
    """
    if "metrics" in options or "json" in options:
        raise UsageError("metrics and json are in use: run returns the rows of metrics")
    rows: list[Row] = []
    stopped = False
    with plan_file(plan) as path:
        job = _Job([path, *option_words({"nproc": nproc, "set": set, "quiet": quiet, **options})])
        try:
            while (row := job.rows.get()) is not None:
                _add(rows, row)
                if on_step is not None and not stopped and on_step(row) is False:
                    stopped = True
                    job.stop()
            code, answer = job.wait()
        except KeyboardInterrupt:
            _stop_after_interrupt(job)
            raise
        except BaseException:
            job.end()
            raise
    if not (stopped and code in _ENDED_BY_US):
        try:
            raise_failure(code, answer, job.screen.text)
        except PrunError as error:
            error.rows = rows
            raise
    if not stopped:  # otherwise the last text is about the signal
        job.screen.flush()
    return rows
