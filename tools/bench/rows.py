"""The rows that every bench here gives with `--json FILE`, one JSON object a line, and suite.py makes a table of.

A row says `what` was measured, the value and its `unit`, of both sides where there is a peer, the ratio (above 1: prun
is ahead), the bar in words and whether it is `reached` (None: no bar, or nothing to compare with). What limits it stands
either in the row (`limit` in words, `share` of it) or is one of suite.py's limits by name, with the rate reached in the
limit's own unit: `rate`: ["f32 peak", 1.9e11]. `disturbed`: the share of the cores' rate that others left (steady.py).
"""
import argparse
import difflib
import json
import pathlib

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20


def compared(what, unit, ours, peer, theirs, bar=None, more_is_better=False, **limits):
    """Against a peer, whose value may be missing: {peer: None} says that it did not run."""
    ratio = None if theirs is None else ours / theirs if more_is_better else theirs / ours
    return {"what": what, "unit": unit, "prun": ours, "peer": peer, "peers": theirs, "ratio": ratio, "bar": None if bar is None else f"{bar} ×",
            "reached": None if ratio is None or bar is None else ratio >= bar, **limits}


def alone(what, unit, ours, bar=None, reached=None, **limits):
    return {"what": what, "unit": unit, "prun": ours, "peer": None, "peers": None, "ratio": None, "bar": bar, "reached": reached, **limits}


def at_most(what, unit, ours, bar, **limits):
    return alone(what, unit, ours, f"≤ {bar:,g} {unit}".strip(), ours <= bar, **limits)


def at_least(what, unit, ours, bar, **limits):
    return alone(what, unit, ours, f"≥ {bar:,g} {unit}".strip(), ours >= bar, **limits)


def failed(what, why):
    """What was asked for and did not run misses its bar."""
    return {**alone(what, "", None, reached=False), "error": why}


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def text(row):
    """A line for the screen."""
    if "error" in row:
        return f"{row['what']}: did not run: {row['error']}"
    line = f"{row['what']}: {number(row['prun'])} {row['unit']}"
    if row["ratio"] is not None:
        line += f", {row['peer']} {number(row['peers'])}, {row['ratio']:.2f} ×"
    if "limit" in row and "share" not in row:
        line += f" ({row['limit']})"
    return line + ("" if row["reached"] is None else f", bar {row['bar']}: {'reached' if row['reached'] else 'missed'}")


class File:
    """Where a bench writes its rows as they come; nothing without a path."""

    def __init__(self, path):
        self.file = open(path, "a") if path else None
        self.missed = False

    def tell(self, *rows):
        """On the screen, too."""
        for row in rows:
            print(text(row), flush=True)
            self.missed = self.missed or row["reached"] is False
        self.add(*rows)

    def add(self, *rows):
        for row in rows if self.file else ():
            print(json.dumps(row, ensure_ascii=False), file=self.file, flush=True)


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()] if pathlib.Path(path).exists() else []


def names(known):
    """The type of an option that takes some of the names known, with commas between them."""
    def read(text):
        for name in text.split(","):
            if name not in known:
                near = difflib.get_close_matches(name.lower(), known, 1)
                raise argparse.ArgumentTypeError(f"there is no '{name}'" + (f" (did you mean '{near[0]}'?)" if near else f"; there are {', '.join(known)}"))
        return text.split(",")
    return read


def add_option(parser):
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="add rows for suite.py to this file")


def cpu_name():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else "unknown CPU"
