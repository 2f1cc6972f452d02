#!/usr/bin/env python3
"""Runs `prun check` on the Lua blocks of the guides, and the commands of the guides that start no rank: all must work.

A block is a plan if its first line names a file: `-- mine.lua: ...`, or `-- mine.lua, 8 ranks: ...` (default: 2 ranks).
The blocks of one guide are written to one folder, so that one may require another.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GUIDES = {  # guide -> least number of blocks
    "README.md": 1,
    "lua/prun/README.md": 8,
    "lua/prun/data/README.md": 3,
    "lua/prun/strategies/README.md": 2,
    "lua/prun/schedules/README.md": 1,
    "plans/custom/README.md": 4,
}


def zeros(descr, shape, size):
    """Returns a .npy file of zeros."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(size)


FILES = {  # read by blocks
    "images.npy": zeros("|u1", (64, 28, 28), 64 * 28 * 28),
    "labels.npy": zeros("<i8", (64,), 64 * 8),
    "train_000000.bin": bytes(4000),  # uint16 without a header
    "train_000001.bin": bytes(4000),
    "validation_000000.bin": bytes(400),
}


def commands(text, plans):
    """Returns the indented commands about one of the plans: [["check", "mine.lua", ..], ..]."""
    lines = re.findall(r"^    prun ((?:check|dump|sim) [^#`\n]*)", text, re.M)
    return [words for words in map(str.split, lines) if words[1] in plans]


def works(prun, words, folder):
    done = subprocess.run([prun, *words], cwd=folder, text=True, capture_output=True)
    print(f"prun {' '.join(words)}: exit {done.returncode}\n{done.stderr}", end="")
    return done.returncode == 0


def check(prun, guide, least):
    text_of_guide = (ROOT / guide).read_text()
    blocks = re.findall(r"```lua\n-- (\S+\.lua)(?:, (\d+) ranks)?:(.*?)```", text_of_guide, re.S)
    if len(blocks) < least:
        sys.exit(f"{guide}: only {len(blocks)} blocks found")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data in FILES.items():
            (pathlib.Path(folder) / name).write_bytes(data)
        for name, _, text in blocks:
            (pathlib.Path(folder) / name).write_text("--" + text)
        for name, ranks, text in blocks:
            if "prun.plan {" not in text and "prun.program(" not in text:
                continue
            done = subprocess.run([prun, "check", name, "--nproc", ranks or "2"], cwd=folder, text=True, capture_output=True)
            print(f"{guide}: {name}: exit {done.returncode}\n{done.stderr}", end="")
            failed += done.returncode != 0
        failed += sum(not works(prun, command, folder) for command in commands(text_of_guide, {name for name, _, _ in blocks}))
    return failed


def main():
    prun = str(pathlib.Path(sys.argv[1]).resolve())
    return 1 if sum(check(prun, guide, least) for guide, least in GUIDES.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
