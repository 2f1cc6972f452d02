"""Compares prun's output with the expected text in a .txt file; shared by tests/golden and tests/errors.

In an expected text "<*>" matches anything within a line (a process id, the memory of this machine). Standard library
only, so that a bare machine can run it.
"""
import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments(description, **options):
    """Returns the parsed command line; `options`: further ones of a script, name = help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("prun", help="the program under test")
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    parser.add_argument("--update", action="store_true", help="rewrite the expected texts that differ")
    for name, text in options.items():
        parser.add_argument(f"--{name}", default="", help=text)
    return parser.parse_intermixed_args()  # names may follow options


def run(prun, command):
    """Runs 'NAME=value prun ARGS...' in the repository's root; returns (exit, stdout, stderr)."""
    words = shlex.split(command)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRUN_")}
    environment["NO_COLOR"] = "1"
    environment["XDG_CONFIG_HOME"] = str(ROOT / "tests/no_config")  # so that no calibration of this machine is used
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, value = words.pop(0).split("=", 1)
        environment[name] = value
    if not words or words.pop(0) != "prun":
        raise SystemExit(f"a case's command begins with 'prun', not: {command}")
    done = subprocess.run([str(pathlib.Path(prun).resolve()), *words], cwd=ROOT, env=environment, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120, errors="replace")
    return done.returncode, normal(done.stdout), normal(done.stderr)


def normal(text):
    """Returns the text without parts that differ between checkouts."""
    return text.replace(str(ROOT) + "/", "").replace(str(ROOT), ".")


def matches(expected, found):
    pattern = ".*".join(re.escape(piece) for piece in expected.split("<*>"))
    return re.fullmatch(pattern, found) is not None


def compare(path, expected, found, update):
    """Returns whether the texts are equal; otherwise prints a diff or, with `update`, writes `found` to the file."""
    if matches(expected, found):
        return True
    if update:
        path.write_text(found)
        print(f"updated {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
        return True
    sys.stdout.writelines(difflib.unified_diff(expected.splitlines(keepends=True), found.splitlines(keepends=True),
                                               f"{path.name} (expected)", f"{path.name} (found)"))
    return False


def finish(results, hint):
    """results: [(name, passed)]; prints a summary and returns the exit code."""
    failed = [name for name, passed in results if not passed]
    for name in failed:
        print(f"FAILED {name}")
    print(f"{len(results) - len(failed)} of {len(results)} as expected")
    if failed:
        print(hint)
    return 1 if failed or not results else 0
