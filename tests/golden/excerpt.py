"""Excerpts a program's text: one unit of each class and the first microbatches, in short lines.

The omitted parts resemble the excerpt, and the last line has a digest of the whole text, so that any change shows.
"""
import hashlib
import re

MOST_COLUMNS, MOST_LINES = 160, 250


def unit_of(line):
    """Returns the numbered unit of a buffer's line or a heading, ("block", 1), or None."""
    buffer = re.match(r" +[\d,]+ +[\d,]+  \w+ +(?:d )?([a-z_]+?)(\d+)\.", line)
    heading = re.match(r"    \w+ ([a-z_]+?)(\d+)(?: |$)", line)
    found = buffer or heading
    return (found[1], int(found[2])) if found else None


def microbatch_of(line):
    found = re.search(r" of microbatch (\d+)$", line) or re.match(r" +[\d,]+ +[\d,]+  \w+ .*#(\d+)", line)
    return int(found[1]) if found else 0


def is_heading(line):
    """Whether this is a heading of ops, such as "    forward block0 of microbatch 1"."""
    return re.match(r"    [a-z]", line) is not None


def parts(text):
    """Returns the programs of the rank classes, each a list of lines."""
    return [part.splitlines() for part in re.split(r"^(?=program  )", text, flags=re.M) if part]


def shortened(lines, microbatches, activations):
    first = {}  # class of units -> the lowest number in this program
    for line in lines:
        if unit := unit_of(line):
            first[unit[0]] = min(first.get(unit[0], unit[1]), unit[1])
    kept, hides, left_out = [], False, 0
    for line in lines:
        indented = line.startswith("     ")
        if is_heading(line) or not indented:
            hides = False
        unit = unit_of(line)
        if is_heading(line):
            hides = (unit is not None and unit[1] != first[unit[0]]) or microbatch_of(line) >= microbatches
        fill = re.match(r" +\d+  fill +->", line) is not None
        alone = fill or indented and unit is not None and unit[1] != first[unit[0]]
        alone = alone or indented and microbatch_of(line) >= min(1, microbatches)
        alone = alone or not activations and re.match(r" +[\d,]+ +[\d,]+  activation ", line) is not None
        if hides or alone:
            left_out += 1
        else:
            if left_out:
                kept.append(f"      ... {left_out} lines like these")
            left_out = 0
            kept.append(line)
    if left_out:
        kept.append(f"      ... {left_out} lines like these")
    return kept


def wrapped(line):
    """Returns the line as rows of at most MOST_COLUMNS, broken between fields."""
    if len(line) <= MOST_COLUMNS:
        return [line]
    rows, row = [], ""
    for piece in re.split(r"(?<=,)(?= )|(?= -> )|(?<=\S)(?=  \S)", line):
        if row and len(row) + len(piece) > MOST_COLUMNS:
            rows.append(row.rstrip())
            row = " " * 12 + piece.lstrip()
        else:
            row += piece
    return rows + [row]


def step_alone(lines):
    """Reduces a rank class whose memory and first ops equal those of an earlier class to its step."""
    at = next((i for i, line in enumerate(lines) if line.startswith("arena")), 0)
    return lines[:at] + lines[lines.index("step"):] if "step" in lines else lines


def terse(line):
    """Removes long attributes and folders of files."""
    line = re.sub(r"\{[^{}]{48,}\}", lambda found: found[0][:40] + " ...}", line)
    return re.sub(r"\[[\w/.]*/(\w+\.lua:\d+)\]$", r"[\1]", line)


def excerpt(text):
    for microbatches, activations in ((2, True), (1, True), (2, False), (1, False)):
        first, *others = (shortened([terse(line) for line in part], microbatches, activations) for part in parts(text))
        lines = [row for part in [first, *map(step_alone, others)] for line in part for row in wrapped(line)]
        if len(lines) < MOST_LINES - 3:
            break
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return "\n".join(lines) + f"\n\nwhole    {text.count(chr(10))} lines, sha256 {digest}\n"
