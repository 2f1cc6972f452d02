#!/usr/bin/env python3
"""Code names ops by handles (ops::linear), not by text. Counts op names in quotes outside runtime/ir/ops. Exceptions
are the devices, benchmarks and gpu_check (which name the measured ops), readers of Hugging Face files (some keys are
equal) and comments.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MOST = 48
ALSO = {"positions", "scale"}  # inputs and attributes have these names, too
APART = ("runtime/ir/ops/", "runtime/kernels/", "plugins/cuda/", "tools/bench/", "tools/gpu_check/", "runtime/checkpoint/hf/", "runtime/tokenizer/", "tools/python/", "runtime/include/prun/sdk/rotary.h")


def main():
    names = set(re.findall(r"^OP\((\w+)\)", (ROOT / "runtime/ir/ops/list.def").read_text(), re.M))
    found = []
    for folder in ("runtime", "plugins", "tools"):
        for path in sorted((ROOT / folder).rglob("*")):
            place = path.relative_to(ROOT).as_posix()
            if path.suffix not in (".cc", ".h", ".cu", ".cuh", ".py") or place.startswith(APART):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found += [f"{place}:{number}: {name}" for name in re.findall(r'"(\w+)"', line.split("//")[0]) if name in names - ALSO]
    print("\n".join(found))
    print(f"{len(found)} op names as text, {MOST} at most; {len(names)} ops")
    return len(names) < 90 or len(found) > MOST


if __name__ == "__main__":
    sys.exit(main())
