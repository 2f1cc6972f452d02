#!/usr/bin/env python3
"""Error texts: prun's messages about faulty plans and commands.

A case is a paragraph of commands.txt: its name, "$ prun ...", "exit CODE", then stderr. The commands run plans of
files/: mistakes.lua, strategies.lua and schedules.lua are tables of mistakes, of which `--set case=NAME` selects one.
New mistakes go last because texts contain line numbers. A plan that needs its own file is NAME.lua, whose first line is
the command ("-- prun check PLAN --nproc 2"; PLAN becomes the file's path from the root of the repository), with
NAME.txt in the same format. PLUGINS (cases of the folders device and cuda) becomes a folder with device plugins.
Expected stdout follows a line "[stdout]": the output of a run that had begun; otherwise it is empty, since a failing
command prints no partial result. `run.py PRUN --update NAME` writes the text of a new case.
"""
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import text_case  # noqa: E402


def found_text(prun, command):
    code, out, err = text_case.run(prun, command)
    if code <= 0:
        print(f"exit {code}, an error was expected: {command}\n{out}{err}")
        return None
    return f"exit {code}\n{err}" + (f"[stdout]\n{out}" if out else "")


def run_plan(prun, path, update, devices):
    first = path.read_bytes().split(b"\n", 1)[0].decode()
    if not first.startswith("-- "):
        raise SystemExit(f"{path}: the first line should be '-- prun ...', is {first!r}")
    plan = path.relative_to(text_case.ROOT) if path.is_relative_to(text_case.ROOT) else path
    found = found_text(prun, first[3:].replace("PLAN", str(plan)).replace("PLUGINS", devices))
    text = path.with_suffix(".txt")
    return found is not None and text_case.compare(text, text.read_text() if text.exists() else "", found, update)


def read_commands(path):
    """Returns the paragraphs of a table: name -> (command, expected text)."""
    paragraphs = [p.split("\n", 2) for p in path.read_text().rstrip("\n").split("\n\n")] if path.exists() else []
    for lines in paragraphs:
        if len(lines) < 2 or not lines[1].startswith("$ "):
            raise SystemExit(f"{path}: a paragraph is a name, then '$ prun ...', not {lines[:2]}")
    return {name: (command[2:], "".join(text) + "\n") for name, command, *text in paragraphs}


def run_commands(prun, table, names, update, devices):
    """Runs the named cases and returns their results; with `update` it rewrites the table."""
    cases, results = read_commands(table), []
    for name in names:
        command, expected = cases[name]
        found = found_text(prun, command.replace("PLUGINS", devices))
        with tempfile.NamedTemporaryFile("w+", prefix=f"{name}.") as shown:
            passed = found is not None and text_case.compare(pathlib.Path(shown.name), expected, found, update)
        cases[name] = (command, found if passed and not text_case.matches(expected, found) else expected)
        results.append((name, passed))
    if update and cases:
        table.write_text("\n".join(f"{name}\n$ {command}\n{text}" for name, (command, text) in cases.items()))
    return results


def main():
    args = text_case.arguments(__doc__, folder="cases of a folder beside this file", devices="what PLUGINS becomes there")
    folder = HERE / args.folder
    table = folder / "commands.txt"
    plans = sorted(path.stem for path in folder.glob("*.lua"))
    wanted = args.cases or plans + list(read_commands(table))
    results = [(name, run_plan(args.prun, folder / f"{name}.lua", args.update, args.devices)) for name in wanted if name in plans]
    results += run_commands(args.prun, table, [name for name in wanted if name not in plans], args.update, args.devices)
    return text_case.finish(results, "when the change is meant: tests/errors/run.py PRUN --update, and read the diff")


if __name__ == "__main__":
    sys.exit(main())
