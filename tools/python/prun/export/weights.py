"""Weights of a plan as one safetensors file that prun.init.from reads, and the way back into the module.

The file carries PyTorch's DCP_SHARDING_INFO, which prun requires: each tensor is one whole piece at offset 0.
"""
from __future__ import annotations

import ctypes
import json
import os
import pathlib
from collections.abc import Mapping

import torch
from torch import Tensor

from .ops import Weight
from .units import Unit

_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16"}


def weights_of(units: list[Unit]) -> dict[str, Weight]:
    """Returns the plan's tensors by name, `<unit>.<layer>.weight` and the like."""
    result: dict[str, Weight] = {}
    for unit in units:
        for op in unit.ops:
            if op.repeats is not None:
                continue
            for suffix, weight in op.weights.items():
                result[f"{unit.name}.{op.name}{suffix}"] = weight
            for role, weight in op.tables.items():
                result[f"{unit.name}.{op.names[role]}"] = weight
    return result


def write(tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Writes a safetensors file; it appears under its name when it is complete."""
    header: dict[str, object] = {"__metadata__": {
        "format": "pt", "DCP_VERSION": "1.0",
        "DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": [0] * t.dim()} for name, t in tensors.items()}),
    }}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = pathlib.Path(f"{os.fspath(path)}.part")
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for tensor in tensors.values():
                held = tensor.contiguous()
                if size := held.numel() * held.element_size():
                    file.write((ctypes.c_char * size).from_address(held.data_ptr()))
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
