"""Functions of one number: relu, gelu, tanh, and SwiGLU's silu(gate) * up.

A function by parts, such as 0.5 * x * (1 + tanh(...)), is recognised by its values at points where the known
functions differ.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from ..builder import Builder
from ..ops import Op
from ..trace import ELEMENTWISE, aten, shape_of

KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    'nn.gelu({0}, "tanh")': lambda x: F.gelu(x, approximate="tanh"),
    'nn.gelu({0}, "none")': F.gelu,
    "nn.relu({0})": F.relu,
    "nn.tanh({0})": torch.tanh,
    "silu": F.silu,
}
# The last ones distinguish functions from those that are cut off, such as relu from relu6.
_POINTS = torch.cat([torch.linspace(-6.7, 6.7, steps=101, dtype=torch.float64),
                     torch.tensor([8.0, 11.0, 17.0, 40.0, 90.0, 250.0], dtype=torch.float64).outer(
                         torch.tensor([-1.0, 1.0], dtype=torch.float64)).flatten()])
_DEPTH = 12  # nodes between the input and the result of a function by parts


def _inputs(builder: Builder, node: Node) -> list[Node]:
    """Returns the nodes that `node` may be a function of, the nearest first."""
    traced = builder.traced
    found: list[Node] = []
    todo, seen = [node], {node}
    while todo and len(found) < _DEPTH:
        one = todo.pop(0)
        for arg in one.all_input_nodes:
            if arg in traced.constants or arg in seen or shape_of(arg) != shape_of(node):
                continue
            seen.add(arg)
            found.append(arg)
            if arg.target in ELEMENTWISE or traced.same(arg):
                todo.append(arg)
    return found


def function_of(builder: Builder, node: Node) -> tuple[str, Node] | None:
    """Returns the known function that a node is, and its input."""
    traced = builder.traced
    if node.target not in ELEMENTWISE:
        return None
    for x in _inputs(builder, node):
        inside, leaves = traced.cone(node, lambda one: one.target in ELEMENTWISE, [x])
        tables = [arg for one in inside for arg in one.all_input_nodes
                  if arg in traced.constants and traced.number(arg) is None]
        if leaves != {x} or tables:
            continue
        values = traced.evaluate(node, {x: _POINTS})
        for text, known in KNOWN.items():
            if torch.allclose(values, known(_POINTS), rtol=1e-10, atol=1e-12):
                return text, x
    return None


def unary(builder: Builder, node: Node) -> Op | None:
    """relu, gelu and tanh, each as one op or by parts."""
    found = function_of(builder, node)
    if found is None or found[0] == "silu":
        return None
    return builder.emit("activation", found[0], [builder.value(found[1])], node)


def gated(builder: Builder, node: Node) -> Op | None:
    """silu(gate) * up."""
    if node.target is not aten.mul.Tensor:
        return None
    for gate, up in (node.args[:2], node.args[1::-1]):
        if not isinstance(gate, Node) or not isinstance(up, Node) or shape_of(gate) != shape_of(up):
            continue
        gate = builder.traced.strip(gate)
        found = function_of(builder, gate)
        if found is not None and found[0] == "silu" and found[1] is not builder.traced.strip(up):
            a, b = builder.value(found[1]), builder.value(up)
            return builder.emit("silu_mul", "nn.silu_mul({0}, {1})", [a, b], node)
    return None
