#!/usr/bin/env python3
"""Error texts: each NAME.lua here is a plan that something is wrong with, NAME.txt what prun should say about it.

The plan's first line is the command, "-- prun check PLAN --nproc 2"; PLAN becomes the file's path from the root of the
repository, PLUGINS (cases of the folders device and cuda) a folder with device plugins. The text is "exit CODE", then what stands on stderr. Nothing may stand on stdout: a failure is never half
done. A new case is a .lua file, then `run.py PRUN --update NAME`.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import text_case  # noqa: E402


def run_case(prun, path, update, devices):
    first = path.read_bytes().split(b"\n", 1)[0].decode()
    if not first.startswith("-- "):
        raise SystemExit(f"{path}: the first line should be '-- prun ...', is {first!r}")
    plan = path.relative_to(text_case.ROOT) if path.is_relative_to(text_case.ROOT) else path
    code, out, err = text_case.run(prun, first[3:].replace("PLAN", str(plan)).replace("PLUGINS", devices))
    found = f"exit {code}\n{err}" + (f"[stdout]\n{out}" if out else "")
    if code <= 0:
        print(f"{path.name}: exit {code}, an error was expected:\n{found}")
        return False
    text = path.with_suffix(".txt")
    return text_case.compare(text, text.read_text() if text.exists() else "", found, update)


def main():
    args = text_case.arguments(__doc__, folder="cases of a folder beside this file", devices="what PLUGINS becomes there")
    folder = HERE / args.folder
    paths = [folder / f"{name}.lua" for name in args.cases] or sorted(folder.glob("*.lua"))
    results = [(path.stem, run_case(args.prun, path, args.update, args.devices)) for path in paths]
    return text_case.finish(results, "when the change is meant: tests/errors/run.py PRUN --update, and read the diff")


if __name__ == "__main__":
    sys.exit(main())
