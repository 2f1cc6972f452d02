#!/usr/bin/env python3
"""Golden texts: each NAME.txt has a command on its first line ("$ prun dump ...") and its output after that, for a
program the excerpt by excerpt.py. `run.py PRUN --whole FOLDER` writes whole texts, for comparison with those of an
earlier prun.

A new case is a file with the first line only, then `run.py PRUN --update NAME`.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import excerpt  # noqa: E402
import text_case  # noqa: E402


def run_case(prun, path, update, whole):
    expected = path.read_text()
    first = expected.split("\n", 1)[0]
    if not first.startswith("$ "):
        raise SystemExit(f"{path}: the first line should be '$ prun ...', is {first!r}")
    code, out, err = text_case.run(prun, first[2:])
    if whole:
        (pathlib.Path(whole) / path.name).write_text(out)
    if out.startswith("program  "):
        out = excerpt.excerpt(out)
    found = f"{first}\n{out}"
    if code != 0 or err:
        found += f"[exit {code}]\n{err}"
    return text_case.compare(path, expected, found, update)


def main():
    args = text_case.arguments(__doc__, whole="folder for the whole texts")
    paths = [HERE / f"{name}.txt" for name in args.cases] or sorted(p for p in HERE.glob("*.txt") if p.name != "CMakeLists.txt")
    results = [(path.stem, run_case(args.prun, path, args.update, args.whole)) for path in paths]
    return text_case.finish(results, "when the change is meant: tests/golden/run.py PRUN --update, and read the diff")


if __name__ == "__main__":
    sys.exit(main())
