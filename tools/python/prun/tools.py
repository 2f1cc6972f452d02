"""Scripts of tools/ that the wheel carries, in libexec/prun; a source tree has them at their place."""
from __future__ import annotations

import pathlib
import runpy
import sys


def run_tool(name: str) -> None:
    """Runs a script of tools/ as the main program, with this process's arguments."""
    here = pathlib.Path(__file__).resolve().parent
    places = [here / "libexec" / "prun" / pathlib.Path(name).name, here.parents[1] / name]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        sys.exit(f"prun: the package has no {places[0]}: install it again")
    sys.argv[0] = str(path)
    runpy.run_path(str(path), run_name="__main__")
