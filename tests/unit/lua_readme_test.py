#!/usr/bin/env python3
"""Runs `prun check` on every Lua block of lua/prun/README.md: what the guide shows must work.

A block's first line names its file; all are written side by side, so that one may require another.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    prun = str(pathlib.Path(sys.argv[1]).resolve())
    blocks = re.findall(r"```lua\n-- (\S+\.lua)[:\s](.*?)```", (ROOT / "lua/prun/README.md").read_text(), re.S)
    if len(blocks) < 5:
        sys.exit(f"only {len(blocks)} blocks found")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in blocks:
            (pathlib.Path(folder) / name).write_text("--" + text)
        for name, text in blocks:
            if "prun.plan {" not in text and "prun.program(" not in text:
                continue
            done = subprocess.run([prun, "check", name, "--nproc", "2"], cwd=folder, text=True, capture_output=True)
            print(f"{name}: exit {done.returncode}\n{done.stderr}", end="")
            failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
