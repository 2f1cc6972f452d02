"""The rows that every benchmark here writes with `--json FILE`, one JSON object per line; suite.py makes a table of
them.

A row has `what` was measured, the value and its `unit`, for both sides if there is a peer, the ratio (above 1: prun is
faster), the bar in words and whether it is `reached` (None: no bar, or nothing to compare with). Its bound is either in
the row (`limit` in words, `share` of it) or one of suite.py's limits by name, with the achieved rate in the limit's
unit: `rate`: ["f32 peak", 1.9e11]. `disturbed`: the share of the cores' rate that other users left (steady.py).
"""
import argparse
import difflib
import json
import pathlib

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20


def compared(what, unit, ours, peer, theirs, bar=None, more_is_better=False, **limits):
    """Returns a row against a peer; {peer: None} records that the peer did not run."""
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
    """Returns a row of a requested measurement that did not run, which misses its bar."""
    return {**alone(what, "", None, reached=False), "error": why}


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def text(row):
    """Returns a row as a line of text."""
    if "error" in row:
        return f"{row['what']}: did not run: {row['error']}"
    line = f"{row['what']}: {number(row['prun'])} {row['unit']}"
    if row["ratio"] is not None:
        line += f", {row['peer']} {number(row['peers'])}, {row['ratio']:.2f} ×"
    if "limit" in row and "share" not in row:
        line += f" ({row['limit']})"
    return line + ("" if row["reached"] is None else f", bar {row['bar']}: {'reached' if row['reached'] else 'missed'}")


class File:
    """Writes the rows of a benchmark as they come; does nothing without a path."""

    def __init__(self, path):
        self.file = open(path, "a") if path else None
        self.missed = False

    def tell(self, *rows):
        """Writes rows, and prints them."""
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
    """Returns an argparse type for a comma-separated list of known names."""
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
