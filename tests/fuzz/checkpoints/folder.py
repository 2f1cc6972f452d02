"""Reads a checkpoint folder without prun's code: names, index.json, weights."""
import dataclasses
import hashlib
import json
import pathlib
import struct

from samples import WEIGHT


@dataclasses.dataclass(frozen=True)
class Stored:
    """A folder step_N of a snapshot."""
    name: str
    digest: str  # of the names and bytes of all its files
    step: int  # -1 = index.json is missing or is not JSON
    samples: int
    run: str  # "" = the checkpoint names no run
    weight: float | None

    @property
    def readable(self):
        return self.step >= 0


def weight_of(path):
    """Returns the weight in a safetensors file, or None if the file is truncated or damaged."""
    try:
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        at = json.loads(raw[8:8 + size])[WEIGHT]["data_offsets"][0] + 8 + size
        return struct.unpack("<f", raw[at:at + 4])[0]
    except (OSError, ValueError, KeyError, struct.error):
        return None


def stored(path):
    digest, index, weight = hashlib.sha1(), {}, None
    for file in sorted(path.iterdir()):
        raw = file.read_bytes()
        digest.update(file.name.encode() + b"\0" + hashlib.sha1(raw).digest())
        if file.name == "index.json":
            try:
                index = json.loads(raw)
            except ValueError:
                index = {}
        elif file.suffix == ".safetensors" and weight is None:
            weight = weight_of(file)
    return Stored(path.name, digest.hexdigest(), index.get("step", -1), index.get("samples", -1), index.get("run") or "", weight)


class Snapshot:
    """A folder of checkpoints at a moment when no job writes to it."""

    def __init__(self, path):
        self.path, self.checkpoints, self.other, self.latest = pathlib.Path(path), {}, set(), None
        if not self.path.is_dir():
            return
        for entry in sorted(self.path.iterdir()):
            if entry.name == "LATEST":
                self.latest = entry.read_text().strip()
            elif entry.is_dir() and entry.name.startswith("step_") and not entry.name.endswith((".tmp", ".old")):
                self.checkpoints[entry.name] = stored(entry)
            elif entry.name != ".lock":
                self.other.add(entry.name)

    def __eq__(self, other):
        return (self.checkpoints, self.other, self.latest) == (other.checkpoints, other.other, other.latest)

    def changes(self, before):
        """Returns the names that are new, that are gone, and whose bytes differ since `before`."""
        here, there = self.checkpoints, before.checkpoints
        return ([n for n in here if n not in there], [n for n in there if n not in here],
                [n for n in here if n in there and here[n].digest != there[n].digest])
