"""Markdown is wrapped at 100 columns, except tables, code blocks, headings and single long words. Links lead to files
and headings that exist. Each decision is in the index of decisions. The word counts of all texts and of the glossary
are bounded.
"""
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
WORDS = 70_000  # upper bound for all texts
TERMS, TERM_WORDS = 40, 30  # upper bounds for the glossary
MARKER = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")


def prose(text):
    """Yields (number of the first line, lines) of each paragraph or list item, without its tail."""
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
    line = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "_"), line)  # a code span counts as one word
    return len(line) > COLUMNS and " " in line[:COLUMNS].strip()[2:]


def files():
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    return [TOP / name for name in names.split()]


def anchors(path):
    """Returns the anchors of a file's headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def broken_links(path):
    """Yields "line: link" for each relative link to a missing file or heading."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if fenced or line.startswith("    ") and not MARKER.match(line):
            continue
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                yield f"{path.relative_to(TOP)}:{number}: {link} does not exist"


def glossary_faults(path):
    rows = [line.strip("| ").split(" | ") for line in path.read_text().splitlines() if line.startswith("| ")][1:]
    yield from (f"{path.relative_to(TOP)}: {len(rows)} terms, {TERMS} at most" for _ in range(len(rows) > TERMS))
    for term, meaning in rows:
        if len(meaning.split()) > TERM_WORDS:
            yield f"{path.relative_to(TOP)}: '{term}' has {len(meaning.split())} words, {TERM_WORDS} at most"


def main():
    wrong = [f"{path.relative_to(TOP)}:{begin + i}: {len(line)} columns"
             for path in files() for begin, block in prose(path.read_text())
             for i, line in enumerate(block) if too_long(line)]
    index = (TOP / "runtime/decisions/README.md").read_text()
    wrong += [f"{path.relative_to(TOP)} is not in the index of decisions"
              for path in files() if path.parent.name == "decisions" and path.name != "README.md" and path.name not in index]
    wrong += [fault for path in files() for fault in broken_links(path)]
    wrong += glossary_faults(TOP / "runtime/GLOSSARY.md")
    words = sum(len(path.read_text().split()) for path in files())
    if words > WORDS:
        wrong.append(f"the Markdown has {words} words, {WORDS} at most")
    print("\n".join(wrong + [f"{len(wrong)} mistakes; the limit is {COLUMNS} columns"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
