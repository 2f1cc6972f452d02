#!/usr/bin/env python3
"""Writes prun's metrics as TensorBoard event files; see README.md. Needs only PyPI's `tensorboard`.

    prun_tensorboard.py runs --out board          # every run of a folder of runs, one curve each
    prun_tensorboard.py metrics.jsonl --out board --follow    # also later rows, until Ctrl-C
"""
import argparse
import json
import pathlib
import sys
import time

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError as error:
    sys.exit(f"prun_tensorboard: {error}: python3 -m pip install tensorboard")

SUFFIX = ".prun"  # suffix of our event files, so that a second conversion replaces the first
TAGS = {"loss": "loss/train", "eval_loss": "loss/eval"}  # other metrics keep their names
NO_CURVES = ("step", "wall_time", "report")


def scalars(row):
    """Yields (tag, value) pairs of one row; a NaN loss is null in the row and a gap in the curve."""
    for name, value in row.items():
        if name not in NO_CURVES and isinstance(value, int | float):
            yield TAGS.get(name, name), value
    for unit, norms in row.get("report", {}).items():
        for name, value in norms.items():
            if value is not None:
                yield f"{name}/{unit}", value


class Curve:
    """One metrics file and the folder of its event file."""

    def __init__(self, metrics, out):
        self.metrics, self.out, self.writer = metrics, out, None
        self.begin()

    def begin(self):
        self.place, self.line, self.time = 0, 0, None
        if self.writer:
            self.writer.close()
        for old in self.out.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        self.writer = EventFileWriter(str(self.out), filename_suffix=SUFFIX)

    def take(self):
        """Converts the complete rows that were added since the last call; returns their number."""
        added = 0
        with self.metrics.open("rb") as file:
            if file.seek(0, 2) < self.place:  # the run resumed from an earlier step, or restarted
                self.begin()
            file.seek(self.place)
            for line in file:
                if not line.endswith(b"\n"):  # incomplete
                    break
                self.place += len(line)
                self.line += 1
                self.add(line)
                added += 1
        self.writer.flush()
        return added

    def add(self, line):
        try:
            row = json.loads(line)
            step = row["step"]
        except (ValueError, KeyError, TypeError):
            sys.exit(f"prun_tensorboard: {self.metrics}:{self.line} is no row of metrics")
        self.time = row.get("wall_time", self.time or self.metrics.stat().st_mtime)  # a report of norms has no time
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row)]
        self.writer.add_event(Event(step=step, wall_time=self.time, summary=Summary(value=values)))


def find_metrics(path, out):
    """Returns [(metrics file, folder for its events)] for a metrics file, a run's folder, or a folder of runs."""
    if path.is_file():
        return [(path, out)]
    if (path / "metrics.jsonl").is_file():
        return [(path / "metrics.jsonl", out / path.name)]
    found = sorted(path.glob("*/metrics.jsonl"))
    if not found:
        sys.exit(f"prun_tensorboard: {path} is no file and no folder of runs (prun PLAN --runs {path} keeps runs there)")
    return [(metrics, out / metrics.parent.name) for metrics in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=pathlib.Path, help="a file that --metrics wrote, a run's folder, or a folder of runs")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for tensorboard --logdir")
    parser.add_argument("--follow", action="store_true", help="go on with what is added, until Ctrl-C")
    args = parser.parse_args()
    curves = {}

    def take():
        for metrics, out in find_metrics(args.metrics, args.out):
            if metrics not in curves:
                curves[metrics] = Curve(metrics, out)
        return sum(curve.take() for curve in curves.values())
    rows = take()
    print(f"{rows} rows of {len(curves)} {'run' if len(curves) == 1 else 'runs'}: tensorboard --logdir {args.out}", flush=True)
    try:
        while args.follow:
            time.sleep(1)
            take()
    except KeyboardInterrupt:
        pass
    for curve in curves.values():
        curve.writer.close()


if __name__ == "__main__":
    main()
