"""Starts the prun command: finds it, spells options, and turns a failure into an exception.

The command gets PRUN_PYTHON, by which it ends with this interpreter, also after SIGKILL (runtime/launch). Nothing runs
between fork and exec, so that a process that has threads may call every function.
"""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import UsageError, error_of

PathOrText = str | os.PathLike[str]
_REPEATED = ("set", "sweep", "search")  # options that are given once per name


def executable() -> str:
    """Returns the path of the prun command: $PRUN_COMMAND, the one in this package, or tools/run of a source tree.

    A prun on PATH is ignored, because it may be of another version. Raises UsageError if there is none.
    """
    here = pathlib.Path(__file__).resolve().parent
    named = os.environ.get("PRUN_COMMAND")
    for path in [pathlib.Path(named)] if named else [here / "bin" / "prun", here.parents[1] / "run"]:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    place = f"PRUN_COMMAND={named}" if named else f"{here}/bin"
    other = shutil.which("prun")
    unused = f"; {other} on PATH is not used, because it may be of another version" if other else ""
    raise UsageError(f"there is no prun command at {place}: install the package with pip install{unused}")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_value(each)}" for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_value(each) for each in value)
    return str(os.fspath(value)) if isinstance(value, os.PathLike) else str(value)


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Returns the words of the command for keyword arguments.

    `max_restarts=2` is --max-restarts 2, True is a flag, False and None are omitted. Lists and dicts are joined by
    commas; `set`, `sweep` and `search` take a dict of names and values.
    """
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.strip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if name in _REPEATED and not isinstance(value, Mapping):
            raise UsageError(f"{name} should be a dict of names and values, is {value!r}")
        if name in _REPEATED:
            words += [word for key, each in value.items() for word in (option, f"{key}={_value(each)}")]
        else:
            words += [option] if value is True else [option, _value(value)]
    return words


@contextlib.contextmanager
def plan_file(plan: PathOrText) -> Iterator[str]:
    """Yields the path of a plan; the text of a plan, which has more than one line, becomes a temporary file."""
    if not isinstance(plan, str) or "\n" not in plan:
        yield os.fspath(plan)
        return
    with tempfile.TemporaryDirectory(prefix="prun-") as folder:
        path = os.path.join(folder, "plan.lua")
        with open(path, "w", encoding="utf-8") as file:
            file.write(plan)
        yield path


def environment() -> dict[str, str]:
    """Returns the variables of a command, which ends when this process does."""
    return {**os.environ, "PRUN_PYTHON": str(os.getpid())}


def start(words: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Starts prun with these words in a session of its own, so that Ctrl-C reaches only this process."""
    command = [executable(), *words]
    try:
        return subprocess.Popen(command, env=environment(), start_new_session=True, stdin=subprocess.DEVNULL, **how)
    except OSError as error:
        raise UsageError(f"{command[0]} does not start: {error.strerror}") from error


def json_object(output: bytes) -> dict[str, Any]:
    """Returns the last line that is a JSON object, {} = there is none."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
    return {}


def raise_failure(code: int, answer: Mapping[str, Any], output: str) -> None:
    """Raises the exception for a command that ended with another code than 0."""
    if code == 0:
        return
    if "version `GLIBC" in output:
        raise UsageError(f"this system's C library is older than that of the package: {output.splitlines()[0]}",
                         exit_code=code, output=output, next="build prun here: pip install . in its source tree")
    raise error_of(128 - code if code < 0 else code, answer, output)


def answer_of(words: Sequence[str]) -> dict[str, Any]:
    """Runs a command that prints one JSON object and returns it. Raises PrunError."""
    with start([*words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    answer = json_object(out)
    raise_failure(process.returncode, answer, err.decode("utf-8", "replace"))
    return answer


def version() -> str:
    """Returns the version of the prun command, for example "0.1.0"."""
    return str(answer_of(["version"])["prun"])
