"""Reshapes, permutations, slices, splits, joins and padding of activations outside attention.

The first dim holds the samples. A plan's batch has another size than the example's, so that sizes with samples in them
are written as -1 or kept.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text, whole
from ..ops import Op, Weight
from ..trace import RESHAPES, aten, is_getitem, op_name, refuse, shape_of

_TRANSPOSE = {aten.transpose.int, aten.t.default, aten.numpy_T.default, aten.mT.default}
_EXPAND = {aten.expand.default, aten.broadcast_to.default, aten.expand_as.default}
_SCATTERS = {aten.slice_scatter.default, aten.select_scatter.default}
_SPLIT = {aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int}
_MOST = 1 << 24  # elements of a constant tensor
_SAMPLES = "prun divides the samples over ranks: keep them in the first dim"


def list_text(sizes: Sequence[int | str]) -> str:
    """Returns a Lua list for Op.text."""
    return f"{{{{ {', '.join(map(str, sizes))} }}}}"


def samples_of(builder: Builder) -> int:
    """Returns the number of samples in the example."""
    return shape_of(next(iter(builder.traced.inputs)))[0]


def reshaped(builder: Builder, op: Op, shape: tuple[int, ...], node: Node) -> Op:
    """Returns the op with another shape. Its samples remain outermost."""
    if op.shape == shape:
        return op
    if _from_parameters(op):
        return builder.emit("reshape", f"{{0}}:reshape {list_text(shape)}", [op], node, shape=shape)
    samples = samples_of(builder)
    count = math.prod(shape)
    if not shape or not op.shape or shape[0] % samples or op.shape[0] % samples or count != math.prod(op.shape):
        raise refuse(node, f"a reshape from {list(op.shape)} to {list(shape)} that mixes samples", _SAMPLES)
    return builder.emit("reshape", f"{{0}}:reshape {list_text([-1, *shape[1:]])}", [op], node, shape=shape)


def operand(builder: Builder, arg: Any) -> Op:
    """Returns the op of an operand in its traced shape, which builder.value does not keep. Parameters are operands."""
    assert isinstance(arg, Node)
    value = builder.traced.constant(arg)
    if isinstance(value, Tensor):
        return filled(builder, value, arg)
    name = builder.traced.parameter(builder.traced.follow(arg))
    if name is None:
        below = builder.traced.strip(arg)
        x = operand(builder, below) if below in builder.traced.parameters else builder.value(arg)
        return reshaped(builder, x, shape_of(arg), arg)
    node = builder.traced.follow(arg)
    if node not in builder.made:
        if name in builder.owner_of:
            raise refuse(arg, f"the parameter {name} outside a layer that owns it", "")
        text = f'nn.parameter({{weight}}, {list_text(shape_of(node))}, {{{{ "normal", 0.02 }}}})'
        reader = min(node.users, key=lambda one: builder.traced.order[one])  # in the unit that it belongs to
        builder.made[node] = builder.emit("parameter", text, [], reader, tables={"weight": whole(name)}, shape=shape_of(node))
    return builder.made[node]


def constant(builder: Builder, value: Tensor, node: Node, short: bool = True) -> Op:
    """Returns numbers that do not depend on the batch, as a frozen parameter of the unit that reads them. `short`: dims in
    which they repeat are 1."""
    value = value.detach()
    if not value.numel() or value.numel() > _MOST:
        raise refuse(node, f"a constant tensor {list(value.shape)}", "compute it outside the module and pass it as data")
    samples = samples_of(builder)
    for dim in range(value.dim() if short else 0):
        if bool((value == value.narrow(dim, 0, 1)).all()):
            value = value.narrow(dim, 0, 1)
        elif dim == 0 and value.shape[0] == samples and value.dim() > 2:
            raise refuse(node, "a constant tensor that differs between samples", _SAMPLES)
    text = f"nn.parameter({{constant}}, {list_text(value.shape)})"
    return builder.emit("parameter", text, [], node, shape=tuple(value.shape),
                        tables={"constant": Weight([], value.to(torch.float64).clone())})


def filled(builder: Builder, value: Tensor, node: Node) -> Op:
    """Returns constant numbers in their whole shape, once a sample."""
    shape = tuple(value.shape)
    if len(shape) > 1 and shape[0] == samples_of(builder):
        if not bool((value == value[:1]).all()):
            raise refuse(node, "a constant tensor that differs between samples", _SAMPLES)
        value = value[:1]
    x = constant(builder, value.double(), node, short=False)
    return _expanded(builder, x, x.shape, shape, node) if x.shape != shape else x


def _first(dim: int, x: Op, node: Node) -> None:
    if dim == 0 and not _from_parameters(x):
        raise refuse(node, "samples that are picked or joined", _SAMPLES)


def reshape(builder: Builder, node: Node) -> Op | None:
    """view, reshape, flatten, unflatten, squeeze, unsqueeze."""
    if node.target not in RESHAPES:
        return None
    return reshaped(builder, operand(builder, node.args[0]), shape_of(node), node)


def permute(builder: Builder, node: Node) -> Op | None:
    """transpose, permute, t, mT."""
    if node.target not in _TRANSPOSE and node.target not in (aten.permute.default, aten.movedim.int):
        return None
    source = node.args[0]
    assert isinstance(source, Node)
    count = len(shape_of(source))
    order: list[int] = list(range(count))
    if node.target is aten.permute.default:
        given: Any = node.args[1]
        order = [one % count for one in given]
    elif node.target is aten.movedim.int:
        moved: Any = node.args[1:]
        order = list(torch.empty(list(range(count)), device="meta").movedim(*moved).shape)  # sizes are the dims
    elif count > 1:
        pair: Any = node.args[1:3] if node.target is aten.transpose.int else (count - 2, count - 1)
        a, b = pair[0] % count, pair[1] % count
        order[a], order[b] = b, a
    x = operand(builder, source)
    if not _from_parameters(x) and order[0] != 0 and shape_of(source)[0] % samples_of(builder) == 0:
        raise refuse(node, "samples that leave the first dim", _SAMPLES)
    moved = [i for i, one in enumerate(order) if i != one]
    text = f":transpose({moved[0]}, {moved[1]})" if len(moved) == 2 else f":permute {list_text(order)}"
    return builder.emit("permute", "{0}" + text, [x], node, shape=shape_of(node))


def expand(builder: Builder, node: Node) -> Op | None:
    """expand, broadcast_to; repeat and repeat_interleave."""
    source: Any = node.args[0] if node.args else None
    if node.target in _EXPAND:
        return _expanded(builder, operand(builder, source), shape_of(source), shape_of(node), node)
    if node.target is aten.repeat.default:
        before, times = shape_of(source), node.args[1]
        assert isinstance(times, list | tuple)
        before = (1,) * (len(times) - len(before)) + before
        if all(size == 1 or count == 1 for size, count in zip(before, times)):
            return _expanded(builder, operand(builder, source), shape_of(source), shape_of(node), node)
        wide = [size for pair in zip([1] * len(times), before) for size in pair][1:]
        to = [size for pair in zip(times, before) for size in pair][1:]
    elif node.target is aten.repeat_interleave.self_int and len(node.args) > 2:
        count: Any = node.args[1]
        at: Any = node.args[2]
        before = shape_of(source)
        if count == 1:
            return operand(builder, source)
        at %= len(before)
        wide, to = [*before[:at + 1], 1, *before[at + 1:]], [*before[:at + 1], count, *before[at + 1:]]
    else:
        return None
    if shape_of(node)[0] != before[0]:
        raise refuse(node, f"{list(before)} repeated to {list(shape_of(node))} along the samples", _SAMPLES)
    x = operand(builder, source)
    wide[0] = to[0] = -1
    text = f"{{0}}:reshape {list_text(wide)}:expand {list_text(to)}:reshape {list_text([-1, *shape_of(node)[1:]])}"
    return builder.emit("expand", text, [x], node, shape=shape_of(node))


def _expanded(builder: Builder, x: Op, before: tuple[int, ...], after: tuple[int, ...], node: Node) -> Op:
    before = (1,) * (len(after) - len(before)) + before
    sizes = [str(size) if size != old else "-1" for old, size in zip(before, after)]
    if before[0] == 1 != after[0]:
        if not _from_parameters(x) or after[0] != samples_of(builder):
            raise refuse(node, f"{list(before)} repeated to {list(after)} along the samples", _SAMPLES)
        tokens = any(name in builder.inputs_used for name in ("tokens", "targets", "shifted"))
        if builder.named and not builder.inputs_used:
            builder.named_input(next(one for one in builder.traced.inputs if one.users))
        first = next(iter(builder.inputs_used)) if builder.named else "tokens" if tokens else "x"
        sizes[0] = f"batch.{first}.shape[1]"
    return builder.emit("expand", f"{{0}}:expand {list_text(sizes)}", [x], node, shape=after)


def _from_parameters(op: Op) -> bool:
    """Returns whether a value has no samples."""
    return op.kind in ("parameter", "relative") or (  # operands that are parameters are in the text
        (bool(op.inputs) or "nn.parameter(" in op.text) and "batch." not in op.text and all(map(_from_parameters, op.inputs)))


def cut(builder: Builder, node: Node, x: Op, dim: int, start: int, size: int) -> Op:
    """Adds a slice of one dim."""
    _first(dim, x, node)
    whole_size = x.shape[dim]
    if start == 0 and size == whole_size:
        return x
    last = "" if start + size == whole_size else f", {start + size}"
    shape = (*x.shape[:dim], size, *x.shape[dim + 1:])
    return builder.emit("slice", f"{{0}}:slice({dim}, {start}{last})", [x], node, shape=shape)


def slices(builder: Builder, node: Node) -> Op | None:
    """x[:, a:b], narrow, select, and the parts of split, chunk and unbind."""
    traced = builder.traced
    source: Any = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if is_getitem(node) and source.target in _SPLIT:
        return _part(builder, node, source)
    if node.target not in (aten.slice.Tensor, aten.narrow.default, aten.select.int):
        return None
    numbers = [traced.number(one) for one in node.args[1:]]
    shape = shape_of(source)
    dim = int(numbers[0] or 0) % len(shape)
    size = shape[dim]
    step = int(numbers[3] or 1) if node.target is aten.slice.Tensor and len(numbers) > 3 else 1
    if node.target is aten.slice.Tensor:
        start = min(max(int(numbers[1] or 0) if len(numbers) > 1 else 0, -size), size) % (size + 1)
        if len(numbers) > 1 and numbers[1] is not None and numbers[1] < 0:
            start = max(0, size + int(numbers[1]))
        length = shape_of(node)[dim]
    elif node.target is aten.narrow.default:
        start, length = int(numbers[1] or 0) % size, int(numbers[2] or 0)
    else:
        start, length = int(numbers[1] or 0) % size, 1
    x = operand(builder, source)
    if step != 1:
        return _every(builder, node, x, dim, start, step)
    return reshaped(builder, cut(builder, node, x, dim, start, length), shape_of(node), node)


def _every(builder: Builder, node: Node, x: Op, dim: int, start: int, step: int) -> Op:
    """Returns each `step`-th element of a dim: the first one of rows of `step` elements."""
    _first(dim, x, node)
    count, size = shape_of(node)[dim], x.shape[dim]
    if start + count * step > size:
        start, first = size - count * step, start + count * step - size
    else:
        first = 0
    if start < 0:  # the last row is cut
        after = x.shape[:dim] + (count * step,) + x.shape[dim + 1:]
        x = builder.emit("pad", f"{{0}}:pad({dim}, 0, {-start})", [x], node, shape=after)
        start, first = 0, first + start
    x = cut(builder, node, x, dim, start, count * step)
    shape = (*x.shape[:dim], count, step, *x.shape[dim + 1:])
    x = builder.emit("reshape", f"{{0}}:unflatten({dim}, {list_text([count, step])})", [x], node, shape=shape)
    x = cut(builder, node, x, dim + 1, first, 1)
    return builder.emit("reshape", f"{{0}}:squeeze({dim + 1})", [x], node, shape=shape_of(node))


def _overwritten(builder: Builder, node: Node) -> tuple[int, list[tuple[int, int, int, Any]]] | None:
    """Returns the dim and the pieces of a tensor whose parts are written one after the other: from where to where, the
    place of the piece's first element, and its node. None for steps.
    """
    base, source = node.args[:2]
    assert isinstance(base, Node)
    dims = len(shape_of(node))
    if node.target is aten.select_scatter.default:
        numbers = [builder.traced.number(one) for one in node.args[2:]]
        dim, start, step = int(numbers[0] or 0) % dims, int(numbers[1] or 0), 1
        size = shape_of(node)[dim]
        start %= size
        end = start + 1
    else:
        numbers = [builder.traced.number(one) for one in [*node.args[2:], *[None] * 4][:4]]
        dim, step = int(numbers[0] or 0) % dims, int(numbers[3] or 1)
        size = shape_of(node)[dim]
        start, end = int(numbers[1] or 0), size if numbers[2] is None else int(numbers[2])
        start, end = (max(0, one + size) if one < 0 else min(one, size) for one in (start, end))
    if step != 1:
        return None
    below = None
    if base.target in _SCATTERS and base not in builder.traced.constants:
        below = _overwritten(builder, base)
    pieces = [(0, size, 0, base)] if below is None or below[0] != dim else below[1]
    kept: list[tuple[int, int, int, Any]] = []
    for first, last, origin, piece in pieces:
        kept += [(first, min(last, start), origin, piece)] if first < start else []
        kept += [(max(first, end), last, origin, piece)] if last > end else []
    return dim, sorted([*kept, (start, end, start, source)], key=lambda one: one[0])


def scatter(builder: Builder, node: Node) -> Op | None:
    """y[:, a:b] = x and y[:, i] = x, without in-place ops."""
    if node.target not in _SCATTERS:
        return None
    found = _overwritten(builder, node)
    if found is None:
        return None
    dim, pieces = found
    shape, parts = shape_of(node), []
    for first, last, origin, piece in pieces:
        size = (*shape[:dim], last - first, *shape[dim + 1:])
        parts.append(_piece(builder, node, piece, dim, first - origin, size))
    _first(dim, parts[0], node)
    if len(parts) == 1:
        return parts[0]
    places = ", ".join(f"{{{i}}}" for i in range(len(parts)))
    return builder.emit("concat", f"nn.concat({{{{ {places} }}}}, {dim})", parts, node, shape=shape)


def _piece(builder: Builder, node: Node, piece: Any, dim: int, first: int, shape: tuple[int, ...]) -> Op:
    """Returns a part of an overwritten tensor. `shape`: its own; a piece of another size in `dim` is cut at `first`."""
    if op_name(piece).removeprefix("new_").startswith("empty"):
        raise refuse(node, "parts of a tensor that are read before they are written", "fill it with torch.zeros")
    value = builder.traced.constant(piece)
    if isinstance(value, Tensor):
        value = value.expand(shape) if value.dim() < len(shape) else value
        return filled(builder, value.narrow(dim, first, shape[dim]) if value.shape[dim] != shape[dim] else value, node)
    x = operand(builder, piece)
    if len(x.shape) == len(shape) - 1 or math.prod(x.shape) == math.prod(shape):  # of y[:, i]
        return reshaped(builder, x, shape, node)
    return cut(builder, node, x, dim, first, shape[dim])


def copied(builder: Builder, node: Node) -> Op | None:
    """y[..] = x, whose result is x in the shape of y."""
    if node.target is not aten.copy.default:
        return None
    source: Any = node.args[1]
    if not isinstance(source, Node) or shape_of(source) == shape_of(node):
        return operand(builder, source)
    return _expanded(builder, operand(builder, source), shape_of(source), shape_of(node), node)


def _part(builder: Builder, node: Node, split: Node) -> Op:
    source, which = split.args[0], node.args[1]
    assert isinstance(source, Node) and isinstance(which, int)
    results: Any = split.meta["val"]
    axis: Any = split.args[2] if split.target is not aten.unbind.int and len(split.args) > 2 else (
        split.args[1] if split.target is aten.unbind.int and len(split.args) > 1 else 0)
    shape = shape_of(source)
    dim = int(axis) % len(shape)
    if split.target is aten.unbind.int:
        start, length = which, 1
    else:
        sizes = [int(one.shape[dim]) for one in results]
        start, length = sum(sizes[:which]), sizes[which]
    op = cut(builder, node, operand(builder, source), dim, start, length)
    return reshaped(builder, op, shape_of(node), node)


def join(builder: Builder, node: Node) -> Op | None:
    """cat and stack."""
    if node.target not in (aten.cat.default, aten.stack.default):
        return None
    parts: Any = node.args[0]
    axis: Any = node.args[1] if len(node.args) > 1 else 0
    dim = int(axis) % len(shape_of(node))
    inputs = [operand(builder, one) for one in parts if math.prod(shape_of(one))]
    _first(dim, inputs[0], node)
    word = "concat" if node.target is aten.cat.default else "stack"
    if len(inputs) == 1 and word == "concat":
        return inputs[0]
    places = ", ".join(f"{{{i}}}" for i in range(len(inputs)))
    return builder.emit(word, f"nn.{word}({{{{ {places} }}}}, {dim})", inputs, node, shape=shape_of(node))


def windows(builder: Builder, node: Node) -> Op | None:
    """x.unfold: windows of a dim, whose elements become the last dim."""
    if node.target is not aten.unfold.default:
        return None
    numbers: Any = node.args[1:]
    x = operand(builder, node.args[0])
    dims = len(x.shape)
    dim, size, step = numbers[0] % dims, numbers[1], numbers[2]
    _first(dim, x, node)
    count = shape_of(node)[dim]
    shape = (*x.shape[:dim], count, size, *x.shape[dim + 1:])
    if step == size:
        x = cut(builder, node, x, dim, 0, count * size)
        x = builder.emit("reshape", f"{{0}}:unflatten({dim}, {list_text([count, size])})", [x], node, shape=shape)
    else:
        parts = [cut(builder, node, x, dim, i * step, size) for i in range(count)]
        places = ", ".join(f"{{{i}}}" for i in range(count))
        x = builder.emit("stack", f"nn.stack({{{{ {places} }}}}, {dim})", parts, node, shape=shape)
    order = [one for one in range(dims + 1) if one != dim + 1]
    return x if dim == dims - 1 else builder.emit(
        "permute", f"{{0}}:permute {list_text([*order, dim + 1])}", [x], node, shape=shape_of(node))


def pad(builder: Builder, node: Node) -> Op | None:
    """F.pad with a constant."""
    constant = node.target is aten.constant_pad_nd.default or (
        node.target is aten.pad.default and (len(node.args) < 3 or node.args[2] == "constant"))
    if not constant:
        return None
    amounts: Any = node.args[1]
    given = node.args[2 if node.target is aten.constant_pad_nd.default else 3:]
    value = builder.traced.number(given[0]) if given and given[0] is not None else 0.0
    op = operand(builder, node.args[0])
    count = len(op.shape)
    for i in range(len(amounts) // 2):
        dim, before, after = count - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        if before == after == 0:
            continue
        _first(dim, op, node)
        low, high = max(-before, 0), max(-after, 0)
        op = cut(builder, node, op, dim, low, op.shape[dim] - low - high)
        before, after = max(before, 0), max(after, 0)
        if before or after:
            tail = f", {number_text(value or 0.0)}" if value else ""
            shape = (*op.shape[:dim], op.shape[dim] + before + after, *op.shape[dim + 1:])
            op = builder.emit("pad", f"{{0}}:pad({dim}, {before}, {after}{tail})", [op], node, shape=shape)
    return op
