"""The module's names of a plan's weights: a description that `prun ckpt export --format torch --description` reads.

runtime/checkpoint/README.md has the format, YAML. Each tensor is one line of JSON, which is YAML, too.
"""
from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from .ops import Part, Weight

_HEAD = """# The names of {name} for the weights of its plan, in PyTorch's layout:
# prun ckpt export runs/NAME --format torch --description prun.yaml --out trained
tensors:
"""


def text(weights: Mapping[str, Weight], parameters: Mapping[str, Tensor], name: str) -> str:
    """Returns the description; "" if a parameter is divided in a way that it cannot express.

    `weights`: the plan's tensors. `parameters`: of the module, tied ones under each of their names.
    """
    places = _places(weights, parameters)
    lines = []
    first: dict[int, str] = {}
    for parameter, tensor in parameters.items():
        original = parameter if parameter in places else first.get(id(tensor), parameter)
        if original not in places:
            original = next((one for one in places if parameters[one] is tensor), "")
        if not original:
            return ""
        entry = _entry(parameter, tensor, places[original], weights)
        if entry is None:
            return ""
        if original != parameter:
            entry["copy"] = True
        first.setdefault(id(tensor), original)
        lines.append(f"  - {json.dumps(entry)}\n")
    constants = [one for one, weight in weights.items() if weight.constant is not None]
    if constants:
        lines.append(f"constants: {json.dumps(constants)}\n")
    return _HEAD.format(name=name) + "".join(lines)


class _Place:
    """A part of a parameter: `theirs` are its rows, or columns, and `ours` those of the plan's tensor."""

    def __init__(self, part: Part, name: str, dims: int, begin: int, tensor: Tensor) -> None:
        piece = part.of(tensor)
        if dims == 2 and part.rows is None and not part.table or dims == 3 and part.transpose:
            self.layout = "out_in" if part.transpose else "in_out"
            count, theirs, whole = piece.shape[-1], part.columns, tensor.shape[-2 if part.transpose else -1]
        else:
            self.layout = "rows"
            tensor = tensor if tensor.dim() else tensor.view(1)
            count, whole = piece.shape[0], tensor.numel() // tensor.shape[-1] if dims == 2 else tensor.shape[0]
            theirs = part.rows if dims == 2 else part.columns
        self.name, self.whole = name, whole
        self.theirs = torch.arange(count) if theirs is None else theirs
        self.ours = torch.arange(begin, begin + count)


def _places(weights: Mapping[str, Weight], parameters: Mapping[str, Tensor]) -> dict[str, list[_Place]]:
    result: dict[str, list[_Place]] = {}
    for name, weight in weights.items():
        begin = 0
        for part in weight.parts:
            tensor = parameters[part.parameter]
            dims = part.of(tensor).dim()
            result.setdefault(part.parameter, []).append(_Place(part, name, dims, begin, tensor))
            begin += part.of(tensor).shape[-1]
    return result


def _entry(parameter: str, tensor: Tensor, places: list[_Place],
           weights: Mapping[str, Weight]) -> dict[str, object] | None:
    rows = torch.cat([one.theirs for one in places])
    order = rows.argsort()
    layout = places[0].layout
    if not torch.equal(rows[order], torch.arange(places[0].whole)) or any(one.layout != layout for one in places):
        return None
    names = [one.name for one in places for _ in range(len(one.theirs))]
    ours = torch.cat([one.ours for one in places])
    runs: list[list[object]] = []
    for i in order.tolist():
        at = int(ours[i])
        if runs and runs[-1][0] == names[i] and runs[-1][1] + runs[-1][2] == at:  # type: ignore[operator]
            runs[-1][2] += 1  # type: ignore[operator]
        else:
            runs.append([names[i], at, 1])
    entry: dict[str, object] = {"tensor": parameter}
    if layout == "in_out" and len(runs) == 1 and runs[0][1:] == [0, tensor.shape[-1]]:
        layout = "rows"
    if layout == "in_out" and len(runs) > 1:
        return None
    whole = len(places) == len(runs) == len(weights[places[0].name].parts) == 1
    if whole:
        entry["ours"] = places[0].name
    else:
        entry["parts"] = runs
    if layout != "rows":
        entry["layout"] = layout
    if layout == "rows" and tensor.dim() > 2:
        entry["reshaped"] = list(tensor.shape)
    return entry
