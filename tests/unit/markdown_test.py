"""Markdown is wrapped at 100 columns: prose only, as tables, code blocks, headings and single long words cannot be. Every
decision is in the index of decisions.
"""
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
MARKER = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")


def prose(text):
    """Yields (first line's number, lines) of each paragraph or item of a list, without its rest."""
    block, begin, fenced = [], 0, False
    for number, line in enumerate(text.splitlines() + [""], 1):
        fence = line.lstrip().startswith("```")
        indented = line.startswith("    ") and not (block and MARKER.match(block[0]))
        other = fence or fenced or indented and not block or line.startswith(("|", "#", "<", ">")) or not line.strip()
        fenced ^= fence
        if block and (other or MARKER.match(line)):
            yield begin, block
            block = []
        if not other:
            begin = begin if block else number
            block.append(line)


def too_long(line):
    line = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "_"), line)  # a command is one word
    return len(line) > COLUMNS and " " in line[:COLUMNS].strip()[2:]


def files():
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    return [TOP / name for name in names.split()]


def main():
    wrong = [f"{path.relative_to(TOP)}:{begin + i}: {len(line)} columns"
             for path in files() for begin, block in prose(path.read_text())
             for i, line in enumerate(block) if too_long(line)]
    index = (TOP / "runtime/decisions/README.md").read_text()
    wrong += [f"{path.relative_to(TOP)} is not in the index of decisions"
              for path in files() if path.parent.name == "decisions" and path.name != "README.md" and path.name not in index]
    print("\n".join(wrong + [f"{len(wrong)} mistakes; the limit is {COLUMNS} columns"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
