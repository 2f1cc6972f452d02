#!/usr/bin/env python3
"""Runs the commands of the section "Keep what was trained" of the guide to checkpoints in an empty folder, word for word
except that tools/run trains a smaller model. Usage: readme_test.py PRUN
"""
import pathlib
import re
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
text = (TOP / "runtime/checkpoint/README.md").read_text()
section = text[text.index("## Keep what was trained"):]
commands = re.search(r"```sh\n(.*?)```", section, re.S).group(1)
with tempfile.TemporaryDirectory(prefix="prun-readme-") as folder:
    run = pathlib.Path(folder, "tools", "run")
    run.parent.mkdir()
    run.write_text(f'#!/bin/sh\nexec "{pathlib.Path(sys.argv[1]).resolve()}" "$@" --set layers=2 --set width=64 --set heads=2\n')
    run.chmod(0o755)
    sys.exit(subprocess.run(["bash", "-ex", "-c", commands], cwd=folder, timeout=280).returncode)
