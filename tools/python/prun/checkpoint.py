"""Reads a checkpoint's pieces as whole tensors, [in, out] for linear layers as plans have them.

prun.load (weights.py) returns PyTorch's layout, for which it starts the command; prun.fit needs the plan's.
"""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from .errors import CheckpointError
from .weights import _module, _tensors


def whole_tensors(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the weights of a checkpoint, or of the newest in a folder of them, as torch tensors in the plan's layout.

    Raises CheckpointError if the folder has none, or if it is damaged.
    """
    torch = _module("torch")
    checkpoint = pathlib.Path(checkpoint)
    try:
        is_folder_of_them = not (checkpoint / "index.json").is_file()
        folder = checkpoint / (checkpoint / "LATEST").read_text().strip() if is_folder_of_them else checkpoint
        index = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint} has no checkpoint: {error}") from error
    wanted = {name: entry for name, entry in index["tensors"].items() if not name.startswith("optimizer.")}
    files = {piece["file"] for entry in wanted.values() for piece in entry["pieces"]}
    pieces = {file: dict(_tensors(folder / file, "torch")) for file in files}
    trained: dict[str, Any] = {}
    for name, entry in wanted.items():
        parts = [(piece, pieces[piece["file"]][name]) for piece in entry["pieces"]]
        tensor = torch.empty(entry["shape"], dtype=parts[0][1].dtype)
        for piece, part in parts:
            tensor[tuple(slice(at, at + n) for at, n in zip(piece["offset"], piece["shape"]))] = part
        trained[name] = tensor.mean(0) if entry.get("drift") else tensor
    return trained
