"""python -m prun.export my_model.py:build writes my_model.lua and my_model.weights.

`build` returns (module, example).
"""
from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
from typing import Any

from ..errors import PrunError
from . import ExportError, export


def _build(what: str) -> Any:
    file, _, name = what.rpartition(":") if ":" in what else (what, "", "build")
    path = pathlib.Path(file)
    if not path.is_file():
        raise ExportError(f"there is no file {file}", hint="pass FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ExportError(f"{file} is no Python file", hint="pass FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ExportError(f"{file} has no {name}", hint="pass FILE.py:FUNCTION; the function returns (module, example)")
    return getattr(module, name)()


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m prun.export", description=__doc__)
    parser.add_argument("what", metavar="FILE.py:FUNCTION", help="a function that returns (module, example)")
    parser.add_argument("--out", help="the plan's path without .lua; default: the file's name")
    options = parser.parse_args(argv)
    try:
        built = _build(options.what)
        if not isinstance(built, tuple) or len(built) != 2:
            raise ExportError(f"{options.what} returns {type(built).__name__}", hint="return (module, example)")
        exported = export(*built)
        base = options.out or pathlib.Path(options.what.rpartition(":")[0] or options.what).stem
        exported.save(base)
    except PrunError as error:
        print(error, file=sys.stderr)
        return error.exit_code or 2
    print(f"{base}.lua and {base}.weights: prun {base}.lua --nproc 2 --set file=TOKENS.bin")
    return 0


if __name__ == "__main__":
    sys.exit(main())
