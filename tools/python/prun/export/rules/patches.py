"""Convolutions whose patches do not overlap, as those of vision transformers: a reshape and a linear layer.

Their result is rows [batch, patches, out]. Most models flatten and transpose it at once, which then needs no op.
"""
from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ..builder import Builder
from ..ops import Op, Part, Weight
from ..trace import MOVEMENT, aten, shape_of
from .views import cut, list_text, operand

_CONVOLUTIONS = {aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3, aten.conv2d.padding: 2}


def _list(value: Any, dims: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * dims if len(given) == 1 else given


def _is_patches(node: Node) -> bool:
    """Returns whether each element of the input is in at most one patch."""
    dims = _CONVOLUTIONS.get(node.target)
    if dims is None or not isinstance(node.args[1], Node):
        return False
    kernel = list(shape_of(node.args[1])[2:])
    given: list[Any] = list(node.args[3:])
    stride, padding, dilation, groups = given + [1, 0, 1, 1][len(given):]
    if isinstance(padding, str):
        padding = 0 if padding == "valid" or all(one == 1 for one in kernel) else 1
    return bool(_list(stride, dims) == kernel and not any(_list(padding, dims)) and groups == 1 and
                all(one == 1 for one in _list(dilation, dims)))


def _rows(builder: Builder, node: Node) -> Op:
    """Returns the convolution's result as rows [batch, patches, out]."""
    x, weight = node.args[:2]
    assert isinstance(x, Node) and isinstance(weight, Node)
    if node in builder.patches:
        return builder.patches[node]
    kernel, channels, out = shape_of(weight)[2:], shape_of(weight)[1], shape_of(weight)[0]
    op = operand(builder, x)
    counts = [size // one for size, one in zip(op.shape[2:], kernel)]
    for i, (count, one) in enumerate(zip(counts, kernel)):
        op = cut(builder, node, op, 2 + i, 0, count * one)
    split = [size for pair in zip(counts, kernel) for size in pair]
    order = [0, *range(2, 2 + len(split), 2), 1, *range(3, 2 + len(split), 2)]
    shape = (op.shape[0], math.prod(counts), channels * math.prod(kernel))
    text = (f"{{0}}:reshape {list_text([-1, channels, *split])}:permute {list_text(order)}"
            f":reshape {list_text([-1, *shape[1:]])}")
    op = builder.emit("patches", text, [op], node, shape=shape)
    weights = {".weight": Weight([Part(builder.part(weight).parameter, transpose=True, flat=True)])}
    bias = node.args[2] if len(node.args) > 2 else None
    if bias is not None:
        weights[".bias"] = Weight([builder.part(bias)])
    tail = "" if bias is not None else ", {{ bias = false }}"
    made = builder.emit("linear", f"nn.linear({{layer}}, {{0}}, {out}{tail})", [op], node, weights=weights,
                        layer=builder.layer_of(node), shape=(*shape[:2], out))
    builder.patches[node] = made
    return made


def patches(builder: Builder, node: Node) -> Op | None:
    """The convolution, or its result as rows."""
    if _is_patches(node):
        rows = _rows(builder, node)
        count = len(shape_of(node))
        text = f"{{0}}:transpose(1, 2):reshape {list_text([-1, *shape_of(node)[1:]])}"
        return builder.emit("permute", text if count > 3 else "{0}:transpose(1, 2)", [rows], node, shape=shape_of(node))
    source = builder.traced.source(node) if node.target in MOVEMENT else None
    if source is None or not _is_patches(source):
        return None
    batch, out, *counts = shape_of(source)
    if shape_of(node) != (batch, math.prod(counts), out):
        return None
    chosen = builder.traced.selection(node)
    as_rows = torch.arange(batch * out * math.prod(counts)).reshape(batch, out, -1).transpose(1, 2)
    return _rows(builder, source) if chosen is not None and torch.equal(chosen[1], as_rows) else None
