"""Sums and products of tensors of one shape, and factors."""
from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text
from ..hints import EXPERTS
from ..ops import Op
from ..trace import aten, refuse, shape_of
from .functions import rows_of
from .views import reshaped


def _same_shape(builder: Builder, node: Node, a: Any, b: Any) -> list[Op] | None:
    """Returns two activations with the same rows; None if rules for broadcasting and parameters apply."""
    for one in (a, b):
        if not isinstance(one, Node) or builder.traced.source(one) in builder.traced.parameters or rows_of(builder, one):
            return None
    size = math.prod(shape_of(node))
    if shape_of(a)[-1:] != shape_of(b)[-1:] or math.prod(shape_of(a)) != size or math.prod(shape_of(b)) != size:
        return None
    # Reshapes that keep rows are stripped: [batch, tokens, width] and [batch * tokens, width] are the same rows.
    x, y = builder.value(a), builder.value(b)
    if "moe" in (x.kind, y.kind) and len(x.shape) != len(y.shape):  # a shared expert with a gate, of rows of tokens
        raise refuse(node, "a mixture of experts", EXPERTS)
    if x.shape[-1:] != y.shape[-1:] or not math.prod(x.shape) == math.prod(y.shape) == size:
        return None
    if x.shape != y.shape and min(len(x.shape), len(y.shape)) > 2:  # such as [samples * channels, tokens, width]
        y = reshaped(builder, y, x.shape, node)
    return [x, y]


def scale(builder: Builder, node: Node) -> Op | None:
    """x * 2, x / 2, -x."""
    traced = builder.traced
    if node.target is aten.neg.default:
        return builder.emit("scale", "{0} * -1", [builder.value(node.args[0])], node)
    if node.target not in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor):
        return None
    x, factor = node.args[:2]
    if traced.number(x) is not None and node.target is not aten.div.Tensor:
        x, factor = factor, x
    value = traced.number(factor)
    if value is None or not isinstance(x, Node) or x in traced.constants:
        return None
    if node.target is aten.div.Tensor:
        value = 1 / value
    if value == 1:
        return builder.value(x)
    return builder.emit("scale", f"{{0}} * {number_text(value)}", [builder.value(x)], node)


def add(builder: Builder, node: Node) -> Op | None:
    """a + b and a - b of one shape."""
    if node.target not in (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor):
        return None
    a, b = node.args[:2]
    alpha = builder.traced.number(node.kwargs.get("alpha", 1))
    if node.target is aten.sub.Tensor:
        alpha = -(alpha or 1)
    for one, other in ((a, b), (b, a)):
        value = builder.traced.constant(one)
        if isinstance(value, Tensor) and isinstance(other, Node) and shape_of(other) == shape_of(node) and (
                not bool(value.any()) and not (one is a and alpha != 1)):
            return builder.value(other)  # zeros, such as a buffer of biases
        if value is not None:
            return None
    both = _same_shape(builder, node, a, b)
    if both is None:
        return None
    x, y = both
    if alpha != 1:
        y = builder.emit("scale", f"{{0}} * {number_text(alpha or 1)}", [y], node)
    return builder.emit("add", "{0} + {1}", [x, y], node)


def multiply(builder: Builder, node: Node) -> Op | None:
    """a * b of one shape."""
    if node.target is not aten.mul.Tensor or builder.traced.constant(node.args[0]) is not None:
        return None
    if builder.traced.constant(node.args[1]) is not None:
        return None
    both = _same_shape(builder, node, *node.args[:2])
    return None if both is None else builder.emit("mul", "{0} * {1}", both, node)


def square(builder: Builder, node: Node) -> Op | None:
    """x ** 2."""
    if node.target is not aten.square.default and not (
            node.target is aten.pow.Tensor_Scalar and builder.traced.number(node.args[1]) == 2):
        return None
    x = builder.value(node.args[0])
    return builder.emit("mul", "{0} * {1}", [x, x], node)
