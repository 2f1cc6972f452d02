"""Rows in an order that numbers of the batch determine, as those of masked autoencoders, which sort noise: x.gather(1, ids)
with ids = noise.argsort(), which rows the model keeps (He et al. 2021).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text
from ..ops import Op
from ..trace import RESHAPES, Traced, aten, shape_of
from . import data
from .views import operand

_REPEATS = {aten.repeat.default, aten.expand.default}


def _ids_of(builder: Builder, index: Any, rows: tuple[int, ...]) -> Node | None:
    """Returns the ids [batch, rows] that an index repeats for each element of the rows of a tensor of shape `rows`."""
    node = builder.traced.follow(index)
    if node.target in _REPEATS and isinstance(node.args[0], Node):
        node = builder.traced.follow(node.args[0])
        if node.target not in RESHAPES or shape_of(node)[2:] != (1,) * (len(rows) - 2):
            return None
        node = builder.traced.follow(node.args[0])  # type: ignore[arg-type]
    ids = len(shape_of(node)) == 2 and shape_of(index)[2:] == rows[2:] and shape_of(node) == shape_of(index)[:2]
    return node if ids and data.depends_on_data(builder, node) else None


def gather(builder: Builder, node: Node) -> Op | None:
    """x.gather(1, ids[..., None].expand(-1, -1, width)): rows of each sample."""
    if node.target is not aten.gather.default or node.args[1] != 1 or node.args[0] in builder.traced.constants:
        return None
    x, index = node.args[0], node.args[2]
    assert isinstance(x, Node) and isinstance(index, Node)
    found = _ids_of(builder, index, shape_of(x))
    if found is None:
        return None
    return builder.emit("gather", "nn.gather({0}, {1})", [operand(builder, x), data.ids(builder, found, node)], node,
                        shape=shape_of(node))


class _Steps:
    """A mask that constant.gather(1, ids) makes, with one step of the constant rows between 0 and 1."""

    def __init__(self, builder: Builder, node: Any) -> None:
        self.ids: Node | None = None
        self.share = 0.0  # of ones in a row
        if not isinstance(node, Node) or node.target is not aten.gather.default or node.args[1] != 1:
            return
        rows = builder.traced.constant(node.args[0])
        if not isinstance(rows, Tensor) or rows.dim() != 2 or not bool((rows == rows[:1]).all()):
            return
        row = rows[0]
        steps = (row[1:] != row[:-1]).nonzero().flatten().tolist()
        if len(steps) == 1 and sorted(row.unique().tolist()) == [0, 1]:
            self.ids = _ids_of(builder, node.args[2], shape_of(node))
            self.first, self.rises = steps[0] + 1, bool(row[-1] == 1)
            self.share = float(row.mean())

    def text(self) -> str:
        """Returns {0} where the mask is 1, otherwise 0; {1}: the ids."""
        return f"nn.where(nn.{'greater_equal' if self.rises else 'less'}({{1}}, {self.first}), {{0}}, 0)"


def masked(builder: Builder, node: Node) -> Op | None:
    """x * mask."""
    if node.target is not aten.mul.Tensor:
        return None
    for x, mask in (node.args[:2], node.args[1::-1]):
        steps = _Steps(builder, mask)
        if steps.ids is not None and isinstance(x, Node) and shape_of(x) == shape_of(node):
            ids = data.ids(builder, steps.ids, node)
            return builder.emit("where", steps.text(), [operand(builder, x), ids], node, shape=shape_of(node))
    return None


def _permutes(traced: Traced, node: Node) -> bool:
    """Returns whether ids are those of all rows in another order."""
    while node.target not in SORTS and node.op == "call_function" and data.is_conversion(node):
        node = node.args[0]  # type: ignore[assignment]
    return node.target in SORTS and shape_of(node) == shape_of(traced.follow(node.args[0]))  # type: ignore[arg-type]


def mean(builder: Builder, node: Node) -> Op | None:
    """(x * mask).sum() / mask.sum(), where each sample's mask has equally many ones: it is permuted."""
    if node.target is not aten.div.Tensor or not all(
            isinstance(one, Node) and one.target is aten.sum.default for one in node.args[:2]):
        return None
    x, mask = (one.args[0] for one in node.args[:2])  # type: ignore[union-attr]
    steps = _Steps(builder, mask)
    if steps.ids is None or not isinstance(x, Node) or x.target is not aten.mul.Tensor or mask not in x.args or (
            shape_of(x) != shape_of(mask) or not _permutes(builder.traced, steps.ids)):  # type: ignore[arg-type]
        return None
    return builder.emit("loss", f"prun.losses.mean({{0}} * {number_text(1 / steps.share)})", [operand(builder, x)], node,
                        shape=(1,))


SORTS = data.SORTS
RULES: list[Callable[[Builder, Node], Op | None]] = [gather, masked]
