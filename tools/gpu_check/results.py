"""What a check found, and the folder that keeps it, so that a run that was cut off goes on where it stopped."""
import dataclasses
import json
import os
import pathlib

PASS, FAIL, IMPOSSIBLE = "pass", "fail", "not possible here"


class NotPossible(Exception):
    """This machine cannot answer the question; the text says why."""


class BudgetSpent(Exception):
    """The time of this call is over; what was under way has no result."""


@dataclasses.dataclass
class Result:
    step: str
    name: str
    status: str
    figure: str = ""   # what was measured
    bar: str = ""      # what it should be
    note: str = ""     # why it failed or could not be asked
    command: str = ""
    seconds: float = 0
    log: str = ""
    table: list = dataclasses.field(default_factory=list)  # what the figure is the sum of: rows of cells, the first their titles


class Store:
    """results.json in a folder. `subject` says what was checked (program and device): results of another are not kept."""

    def __init__(self, folder: pathlib.Path):
        self.path = folder / "results.json"
        self.subject, self.results = {}, []
        if self.path.exists():
            kept = json.loads(self.path.read_text())
            self.subject, self.results = kept["subject"], [Result(**result) for result in kept["results"]]

    def begin(self, subject, steps):
        """Drops what was found of another subject, but for `steps`, which do not depend on it. True: something was dropped."""
        stale = self.subject not in ({}, subject)
        if stale:
            self.results = [result for result in self.results if result.step in steps]
        self.subject = subject
        self.write()
        return stale

    def find(self, step, name):
        return next((r for r in self.results if (r.step, r.name) == (step, name)), None)

    def forget(self, step, name):
        self.results = [r for r in self.results if (r.step, r.name) != (step, name)]

    def add(self, result):
        self.forget(result.step, result.name)
        self.results.append(result)
        self.write()

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"subject": self.subject, "results": [dataclasses.asdict(r) for r in self.results]}, indent=1))
        os.replace(new, self.path)
