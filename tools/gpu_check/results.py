"""The result of a check, and the folder of results, so that a later call continues where the previous one stopped."""
import dataclasses
import json
import os
import pathlib
import threading

PASS, FAIL, IMPOSSIBLE, CUT = "pass", "fail", "not possible here", "cut off"


class NotPossible(Exception):
    """This machine cannot answer the question; the text is the reason."""


@dataclasses.dataclass
class Result:
    part: str
    name: str
    status: str
    figure: str = ""  # the measurement
    bar: str = ""  # its required value
    note: str = ""  # why it failed or could not run
    command: str = ""
    seconds: float = 0
    log: str = ""
    table: list = dataclasses.field(default_factory=list)  # rows of cells behind the figure; the first holds titles
    cured: list = dataclasses.field(default_factory=list)  # remedies with which a failed check passes
    tried: list = dataclasses.field(default_factory=list)  # remedies that were tried
    key: dict = dataclasses.field(default_factory=dict)  # {file or version: hash}, see keys.of


def results_of(path):
    """Returns the results in a file that `Store` or keep.py wrote. Raises ValueError for other files."""
    try:
        return [Result(**result) for result in json.loads(path.read_text())["results"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no results of tools/gpu-check ({error})") from None


class Store:
    """results.json in a folder, written after every result. Thread-safe."""

    def __init__(self, folder: pathlib.Path, kept=(), changed=lambda key: []):
        """Reads the folder's results and, for checks without one, those in the files `kept`. Drops results whose key
        has changed according to `changed(key)`, and records the changes in `dropped`."""
        self.path = folder / "results.json"
        self.lock = threading.Lock()
        own = results_of(self.path) if self.path.exists() else []
        self.dropped = {(r.part, r.name): changed(r.key) for r in own if changed(r.key)}
        self.results = [r for r in own if (r.part, r.name) not in self.dropped]
        for result in (result for path in kept for result in results_of(path)):
            if not changed(result.key) and self.find(result.part, result.name) is None:
                self.results.append(result)

    def find(self, part, name):
        return next((r for r in self.results if (r.part, r.name) == (part, name)), None)

    def add(self, result):
        with self.lock:
            self.results = [r for r in self.results if (r.part, r.name) != (result.part, result.name)] + [result]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps({"results": [dataclasses.asdict(r) for r in self.results]}, indent=1))
            os.replace(new, self.path)
