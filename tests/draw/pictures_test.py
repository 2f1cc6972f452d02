#!/usr/bin/env python3
"""The pictures of plans/pictures equal the output of the commands in its README; --update redraws them.

Standard library only, so that a bare machine can run it.
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PICTURES = ROOT / "plans" / "pictures"


def draw(prun, words, out):
    done = subprocess.run([prun, *words, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"prun {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return out.read_text()


def main():
    prun, update = str(pathlib.Path(sys.argv[1]).resolve()), "--update" in sys.argv
    readme = (PICTURES / "README.md").read_text()
    commands = [shlex.split(line)[1:] for line in readme.splitlines() if line.startswith("    prun draw ")]
    wrong, drawn = [], set()
    with tempfile.TemporaryDirectory() as folder:
        for words in commands:
            at = words.index("--out")
            kept, words = ROOT / words[at + 1], words[:at] + words[at + 2:]
            drawn.add(kept.name)
            text = draw(prun, words, pathlib.Path(folder) / kept.name)
            xml.etree.ElementTree.fromstring(text)
            if update:
                kept.write_text(text)
            elif not kept.exists() or kept.read_text() != text:
                wrong.append(f"{kept.relative_to(ROOT)} is not what `prun {shlex.join(words)}` draws")
    shown = set(re.findall(r"\]\((\w+\.svg)\)", readme))
    there = {path.name for path in PICTURES.glob("*.svg")}
    for names, why in ((drawn - shown, "is not shown"), (shown - drawn, "is not drawn"), (there - drawn, "has no command")):
        wrong += [f"plans/pictures/README.md: {name} {why}" for name in sorted(names)]
    print("\n".join(wrong) or f"{len(commands)} pictures are as drawn")
    if wrong:
        print("when the change is meant: tests/draw/pictures_test.py PRUN --update, and look at them")
    return 1 if wrong or len(commands) < 19 else 0


if __name__ == "__main__":
    sys.exit(main())
