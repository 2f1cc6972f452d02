"""Ids that a module computes from its inputs alone: positions counted from a mask, targets shifted to the right, the last
token of each sample. The plan computes them in the same way, in the unit that looks them up.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder
from ..ops import Op
from ..trace import RESHAPES, aten, op_name, refuse, shape_of
from .views import list_text, operand, samples_of

_LONGEST = 400  # characters of an expression
_FUNCTIONS = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "{0} * {1}", "neg": "{0} * -1", "maximum": "nn.maximum({0}, {1})",
    "minimum": "nn.minimum({0}, {1})", "clamp_min": "nn.maximum({0}, {1})", "clamp_max": "nn.minimum({0}, {1})",
    "ne": "nn.not_equal({0}, {1})", "eq": "nn.equal({0}, {1})", "lt": "nn.less({0}, {1})", "le": "nn.less_equal({0}, {1})",
    "gt": "nn.greater({0}, {1})", "ge": "nn.greater_equal({0}, {1})", "__and__": "{0} * {1}", "logical_and": "{0} * {1}",
    "bitwise_and": "{0} * {1}", "logical_or": "nn.maximum({0}, {1})", "__or__": "nn.maximum({0}, {1})",
    "bitwise_or": "nn.maximum({0}, {1})", "bitwise_not": "nn.equal({0}, 0)", "logical_not": "nn.equal({0}, 0)",
    "where": "nn.where({0}, {1}, {2})", "masked_fill": "nn.where({1}, {2}, {0})", "abs": "nn.abs({0})",
}
_BOOLEAN = {"__and__", "bitwise_and", "__or__", "bitwise_or", "bitwise_not"}  # other integers have bits
SORTS = {aten.argsort.default, aten.argsort.stable}
_CONVERSIONS = {"to", "_to_copy", "type_as", "long", "int", "bool", "clone", "contiguous", "alias", "lift_fresh_copy"}


def is_conversion(node: Node) -> bool:
    """Returns whether a node has its operand's integers, perhaps of another type."""
    source = node.args[0] if node.args else None
    return op_name(node) in _CONVERSIONS and isinstance(source, Node) and not any(
        one.meta["val"].dtype.is_floating_point or one.meta["val"].dtype == torch.bool for one in (source, node))


def depends_on_data(builder: Builder, node: Any) -> bool:
    """Returns whether a node holds integers that depend on inputs and on no parameter."""
    if not isinstance(node, Node) or node in builder.traced.constants:
        return False
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.is_floating_point():
        return False
    _, leaves = builder.traced.cone(node, lambda _: True)
    return bool(leaves) and leaves <= set(builder.traced.inputs)


def ids(builder: Builder, node: Node, reader: Node, shape: tuple[int, ...] | None = None) -> Op:
    """Returns the op of integers that are computed from inputs, for the op at `reader`. `shape`: another shape of them."""
    expression = _Expression(builder, reader)
    text = expression.of(node)
    wanted = shape or shape_of(node)
    if wanted != shape_of(node):
        text = f"nn.reshape({text}, {list_text([-1, *wanted[1:]])})"
    return expression.emit(text, wanted)


def _whole(text: str) -> bool:
    """Returns whether the first bracket closes at the end."""
    depth = 0
    for i, one in enumerate(text):
        depth += (one == "(") - (one == ")")
        if depth == 0:
            return text[0] == "(" and i == len(text) - 1
    return False


class _Expression:
    """Writes integers as Lua."""

    def __init__(self, builder: Builder, reader: Node) -> None:
        self.builder, self.traced, self.reader = builder, builder.traced, reader
        self.ops: list[Op] = []  # of values that are read several times, {0}, {1}, .. in texts
        self.shared: dict[Node, str] = {}

    def emit(self, text: str, shape: tuple[int, ...]) -> Op:
        if len(text) > _LONGEST:
            raise refuse(self.reader, "ids that are computed in many steps", "pass the ids as an argument of the module")
        places = list(dict.fromkeys(int(one) for one in re.findall(r"(?<!{){(\d+)}", text)))
        text = re.sub(r"(?<!{){(\d+)}", lambda found: f"{{{places.index(int(found[1]))}}}", text)
        text = text[1:-1] if _whole(text) else text
        return self.builder.emit("ids", text, [self.ops[i] for i in places], self.reader, shape=shape)

    def of(self, arg: Any) -> str:
        """Returns the expression of a node or a number."""
        number = self._number(arg)
        if number is not None:
            return str(number)
        if not isinstance(arg, Node):
            raise self._refused(self.reader)
        node = self.traced.follow(arg)
        if node in self.traced.inputs:
            return self._input(node)
        if node in self.traced.constants:
            raise self._refused(node)
        if node in self.shared:
            return self.shared[node]
        text = self._written(node)
        if len([user for user in node.users if op_name(user) != "type_as"]) > 1 and "(" in text:
            self.ops.append(self.emit(text, shape_of(node)))
            text = self.shared[node] = f"{{{len(self.ops) - 1}}}"
        return text

    def _written(self, node: Node) -> str:
        name = op_name(node)
        for rule in (self._conversion, self._function, self._along_dim, self._view, self._scatter, self._sorted):
            text = rule(node, name)
            if text is not None:
                return text
        raise self._refused(node)

    def _refused(self, node: Node) -> Exception:
        return refuse(node, "ids that are computed in a way that a plan cannot say",
                      "pass the ids as an argument of the module")

    def _number(self, arg: Any) -> int | None:
        value = self.traced.constant(arg)
        if isinstance(value, Tensor) and value.numel() and bool((value == value.flatten()[0]).all()):
            value = value.flatten()[0].item()
        if isinstance(value, bool):
            return int(value)
        return int(value) if isinstance(value, int | float) and value == int(value) else None

    def _input(self, node: Node) -> str:
        if self.builder.named:
            return self.builder.named_input(node)
        if self.builder.inputs_used.get("tokens") is node:
            return "batch.tokens"
        if self.builder.inputs_used.keys() & {"tokens", "targets", "shifted"}:
            raise refuse(self.reader, "ids that are computed from another input than the tokens",
                         "pass the ids as an argument of the module")
        return f"batch.{self.builder.place(node, 'x')}"

    def _conversion(self, node: Node, name: str) -> str | None:
        if name not in _CONVERSIONS or not isinstance(node.args[0], Node):
            return None
        before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype
        if before.is_floating_point or after.is_floating_point:
            return None
        text = self.of(node.args[0])
        return f"nn.not_equal({text}, 0)" if after == torch.bool != before else text

    def _function(self, node: Node, name: str) -> str | None:
        pattern = _FUNCTIONS.get(name)
        if pattern is None or node.kwargs.get("alpha", 1) != 1 or (
                name in _BOOLEAN and node.meta["val"].dtype != torch.bool):
            return None
        texts = []
        for i, arg in enumerate(node.args):
            texts.append(self._counting(arg, node, i) or self._ignored(arg, node) or self.of(arg))
        if name == "add" and "0" in texts:
            return texts[1 - texts.index("0")]
        parts = re.split(r"{(\d)}", pattern)  # the texts have braces, too
        return "".join(texts[int(one)] if i % 2 else one for i, one in enumerate(parts))

    def _counting(self, arg: Any, node: Node, i: int) -> str | None:
        """Returns arange along a dim, counted from the other operand."""
        value = self.traced.constant(arg)
        if not isinstance(value, Tensor) or value.dim() == 0 or self._number(arg) is not None:
            return None
        other = next((one for j, one in enumerate(node.args) if j != i and isinstance(one, Node)
                      and one not in self.traced.constants), None)
        if other is None or shape_of(other) != shape_of(node):
            return None
        shape = shape_of(node)
        for dim in range(len(shape)):
            counted = torch.arange(shape[dim]).reshape([-1 if at == dim else 1 for at in range(len(shape))])
            if torch.equal(value.expand(shape), counted.expand(shape).to(value.dtype)):
                text = self._like(other)
                return f"(nn.cumsum(nn.equal({text}, {text}), {dim}) - 1)"
        return None

    def _ignored(self, arg: Any, node: Node) -> str | None:
        """Returns the number of an ignored target that a node compares targets with: a plan reads -1 for it."""
        if op_name(node) not in ("eq", "ne"):
            return None
        _, leaves = self.traced.cone(node, lambda _: True)
        found = any(self.builder.ignored.get(one) == self._number(arg) for one in leaves if one in self.builder.ignored)
        return "-1" if found else None

    def _like(self, node: Node) -> str:
        """Returns integers of the shape of a node, such as an input that it is computed from."""
        _, leaves = self.traced.cone(node, lambda _: True)
        return next((self._input(one) for one in sorted(leaves, key=lambda one: one.name)
                     if shape_of(one) == shape_of(node) and one in self.traced.inputs), "") or self.of(node)

    def _along_dim(self, node: Node, name: str) -> str | None:
        dims: Any = node.args[1] if len(node.args) > 1 else None
        if isinstance(dims, list | tuple) and len(dims) == 1:
            dims = dims[0]
        if not isinstance(dims, int) or name not in ("cumsum", "argmax", "sum", "amax"):
            return None
        word = {"amax": "max"}.get(name, name)
        keep = len(node.args) > 2 and node.args[2] or node.kwargs.get("keepdim", False)
        tail = ", {{ keep = true }}" if keep and name != "cumsum" else ""
        return f"nn.{word}({self.of(node.args[0])}, {dims}" + tail + ")"

    def _view(self, node: Node, name: str) -> str | None:
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not shape_of(node):
            return None
        shape, before = shape_of(node), shape_of(source)
        if node.target in RESHAPES:
            if shape[0] != before[0] or shape[0] != samples_of(self.builder):
                return None
            return f"nn.reshape({self.of(source)}, {list_text([-1, *shape[1:]])})"
        if name in ("slice", "narrow", "select"):
            dim = self._dim(node, before)
            if not dim:
                return None
            index = torch.arange(before[dim]).reshape([-1 if at == dim else 1 for at in range(len(before))]).expand(before)
            picked = self.traced.evaluate(node, {source: index}).unique()
            first, last = int(picked[0]), int(picked[-1]) + 1
            if last - first != len(picked):
                return None
            end = "" if last == before[dim] else f", {last}"
            text = f"nn.slice({self.of(source)}, {dim}, {first}{end})"
            return f"nn.squeeze({text}, {dim})" if name == "select" else text
        return None

    def _dim(self, node: Node, before: tuple[int, ...]) -> int | None:
        dim: Any = node.args[1] if len(node.args) > 1 else 0
        return int(dim) % len(before) if isinstance(dim, int) else None

    def _sorted(self, node: Node, name: str) -> str | None:
        """The order of a row's numbers, which an input has, or the place of each in that order. Equal ones keep theirs."""
        source = _sorted_by(node)
        again = source is not None and source not in self.traced.inputs
        if source is not None and again:
            source = _sorted_by(source)
        if source is None or source not in self.traced.inputs:
            return None
        x = self._input(source)
        shape, count = shape_of(node), len(self.ops)
        self.ops.append(self.emit(f"nn.cumsum(nn.equal({x}, {x}), 1) - 1", shape))
        place = f"{{{count}}}"
        before = (f"nn.maximum(nn.less({x}:unsqueeze(1), {x}:unsqueeze(2)), nn.equal({x}:unsqueeze(1), {x}:unsqueeze(2)) "
                  f"* nn.less({place}:unsqueeze(1), {place}:unsqueeze(2)))")
        self.ops.append(self.emit(f"nn.sum({before}, 2)", shape))  # numbers, not ids
        ranks = f"{{{count + 1}}}"
        across, down = (place, ranks) if again else (ranks, place)
        return f"nn.argmax(nn.equal({across}:unsqueeze(1), {down}:unsqueeze(2)), 2)"

    def _scatter(self, node: Node, name: str) -> str | None:
        """Elements that are written into constant ones, or a constant that is written into elements."""
        if name == "copy":
            return self.of(node.args[1])
        if name not in ("slice_scatter", "select_scatter"):
            return None
        base, source = node.args[:2]
        shape = shape_of(node)
        dim = int(node.args[2]) % len(shape) if len(node.args) > 2 else 0  # type: ignore[call-overload]
        value = self._number(base)
        if name == "slice_scatter":
            if value is None or dim == 0 or not isinstance(source, Node):
                return None
            start: Any = node.args[3] if len(node.args) > 3 else 0
            before = int(start or 0) % (shape[dim] + 1)
            after = shape[dim] - before - shape_of(source)[dim]
            return _padded(self.of(source), dim, before, after, value)
        index: Any = node.args[3]
        number = self._number(source)
        if number is None or dim == 0 or int(index) % shape[dim] != 0:
            return None
        inner = base
        if isinstance(inner, Node) and op_name(inner) == "slice_scatter" and self._number(inner.args[0]) is not None and (
                inner.args[2:4] == (dim, 1)) and shape_of(inner.args[1])[dim] == shape[dim] - 1:  # type: ignore[arg-type]
            return _padded(self.of(inner.args[1]), dim, 1, 0, number)  # shifted to the right
        return _padded(f"nn.slice({self.of(base)}, {dim}, 1)", dim, 1, 0, number)


def _sorted_by(node: Node) -> Node | None:
    """Returns the numbers by whose order along dim 1 a node sorts each sample's places, the smallest first."""
    if node.target not in SORTS or len(shape_of(node)) != 2:
        return None
    given = dict(zip([one.name for one in node.target._schema.arguments], node.args)) | node.kwargs  # type: ignore[union-attr]
    source = given["self"]
    while isinstance(source, Node) and is_conversion(source):
        source = source.args[0]
    ascending = given.get("dim", -1) in (1, -1) and not given.get("descending", False)
    return source if ascending and isinstance(source, Node) else None


def _padded(text: str, dim: int, before: int, after: int, value: int) -> str:
    return f"nn.pad({text}, {dim}, {before}, {after}{f', {value}' if value else ''})"


def is_pick(builder: Builder, node: Node) -> bool:
    """Returns whether a node is x[arange(batch), ids]."""
    if node.target is not aten.index.Tensor:
        return False
    x, places = node.args
    if not isinstance(x, Node) or not isinstance(places, list | tuple) or len(places) != 2 or len(shape_of(x)) < 2:
        return False
    samples, rows = places
    counted = builder.traced.constant(samples)
    return (isinstance(counted, Tensor) and depends_on_data(builder, rows) and shape_of(rows) == shape_of(x)[:1]
            and torch.equal(counted.flatten(), torch.arange(shape_of(x)[0])))


def pick(builder: Builder, node: Node) -> Op | None:
    """x[arange(batch), ids]: one row of each sample."""
    if not is_pick(builder, node):
        return None
    x, (_, rows) = node.args  # type: ignore[misc]
    chosen = ids(builder, rows, node, (shape_of(node)[0], 1))  # type: ignore[arg-type]
    return builder.emit("gather", "nn.squeeze(nn.gather({0}, {1}), 1)", [operand(builder, x), chosen], node,
                        shape=shape_of(node))


RULES: list[Callable[[Builder, Node], Op | None]] = [pick]
