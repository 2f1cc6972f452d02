#!/usr/bin/env python3
"""The intended forms of the mistakes in tests/errors/files/words.lua are accepted, and each mistake has its expected
text.

words_test.py PRUN
"""
import pathlib
import re
import subprocess
import sys

ERRORS = pathlib.Path(__file__).resolve().parent.parent / "errors"


def main():
    prun, plan = pathlib.Path(sys.argv[1]).resolve(), ERRORS / "files" / "words.lua"
    cases = re.findall(r"^  (\w+) = \{$", plan.read_text(), re.M)
    told = set(re.findall(r"files/words.lua .*--set case=(\w+)", (ERRORS / "commands.txt").read_text()))
    failed = [f"{case}: no text in commands.txt" for case in cases if case not in told]
    for case in cases:
        done = subprocess.run([prun, "check", plan, "--nproc", "2", "--set", f"case={case}", "--set", "right=true", "--prove"],
                              capture_output=True, text=True, timeout=60, cwd=ERRORS.parent.parent)
        if done.returncode != 0:
            failed.append(f"{case}: exit {done.returncode}\n{done.stderr}")
    for change, what in (("average", "averages of parameters"), ("eval", "evaluations"), ("report", "reports")):
        done = subprocess.run([prun, "check", ERRORS / "files" / "never.lua", "--nproc", "2", "--set", f"what={change}"],
                              capture_output=True, text=True, timeout=60, cwd=ERRORS.parent.parent)
        said = f"{what} after every 1000 steps never come in a run of 4 steps"
        if done.returncode != 0 or not re.search(r"^prun: .*never\.lua:\d+: " + said, done.stderr, re.M):
            failed.append(f"{change}: exit {done.returncode}, not said: {said}\n{done.stderr}")
    print("\n".join(failed) or f"{len(cases)} corrected plans are accepted")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
