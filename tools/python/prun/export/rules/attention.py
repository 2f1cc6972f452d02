"""Attention over heads of linear layers, with rotary positions.

Between the linear layers and the attention, programs reshape, transpose, repeat heads, rotate and scale in many ways.
All of them are linear in the layer's outputs, so this file computes them on chosen numbers: the results at position 0,
which no rotation changes, name the column that each element of a head comes from; a half of ones gives the angles.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text
from ..errors import ExportError
from ..ops import Op
from ..trace import MOVEMENT, aten, is_getitem, refuse, shape_of
from . import bias, norms
from .layers import Layer, emit_layer, read_layer
from .rotary import Rotation, find_rotation
from .scores import Call, read_call
from .views import operand, reshaped, samples_of

_PARTS = {aten.cat.default, aten.stack.default, aten.roll.default}
_LINEAR = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.mul.Scalar}


@dataclass
class Heads:
    """One of q, k and v: [batch, heads, tokens, size] taken from a linear layer, or from another value (layer = None).

    `columns` [heads, size]: the element of the origin's token that each element comes from; `factor` multiplies all.
    `by_heads`: the origin is [batch, heads, tokens, size], not [batch, tokens, ..].
    """

    origin: Node
    layer: Layer | None
    by_heads: bool
    columns: Tensor
    factor: float
    rotation: Rotation | None
    batch: int
    tokens: int


def _inner(one: Node) -> bool:
    return one.target in MOVEMENT or is_getitem(one) or one.target in _LINEAR or one.target in _PARTS


def _heads(builder: Builder, node: Node, arg: Node, transposed: bool = False) -> Heads:
    """Reads q, k or v of the attention at `node`; `transposed`: arg is [.., size, tokens]."""
    traced = builder.traced

    def inside(one: Node) -> bool:
        return _inner(one) and read_layer(builder, one) is None and norms.read(builder, one) is None

    nodes, leaves = traced.cone(arg, inside)
    shape = shape_of(arg)
    if len(leaves) > 1:  # a layer and its adapter: their sum
        sums = [one for one in nodes if one.target is aten.add.Tensor and len(shape_of(one)) < len(shape)]
        for one in sorted(sums, key=traced.order.__getitem__, reverse=True):
            below = traced.cone(arg, lambda two, one=one: two is not one and inside(two))[1]  # type: ignore[misc]
            heads = _read_heads(builder, node, arg, one, transposed) if below == {one} else None
            if heads is not None and torch.equal(heads.columns.unique(), torch.arange(shape_of(one)[-1])):
                return heads
    if len(shape) not in (3, 4):
        raise refuse(node, f"attention over tensors with {len(shape)} dims", "heads are [batch, heads, tokens, size]")
    origin = next(iter(leaves)) if len(leaves) == 1 else arg
    found = _read_heads(builder, node, arg, origin, transposed)
    if found is None and origin is not arg:
        found = _read_heads(builder, node, arg, arg, transposed)
    if found is None:
        raise refuse(node, "attention over tensors that are not heads of tokens", "q, k and v are [batch, heads, tokens, size]")
    return found


def _read_heads(builder: Builder, node: Node, arg: Node, origin: Node, transposed: bool) -> Heads | None:
    """Returns q, k or v as heads of `origin`; None if the origin is no value of tokens."""
    traced, layer = builder.traced, read_layer(builder, origin)
    shape, source = shape_of(arg), shape_of(origin)
    size, tokens = (shape[-2], shape[-1]) if transposed else (shape[-1], shape[-2])
    elements = math.prod(source)
    batch = shape[0] if len(shape) == 4 else (elements // source[-1] // tokens if layer else samples_of(builder))
    rows = batch * tokens
    if rows == 0 or elements % rows or (layer is not None and elements // source[-1] != rows):
        return None
    width = elements // rows
    by_heads = layer is None and len(source) >= 3 and source[-2:] == (tokens, size) and source[:2] != (batch, tokens)
    if layer is None and origin is arg:
        by_heads = True

    def given_as(given: Tensor) -> Tensor:
        """Returns values of tokens [batch, tokens, width] in the origin's shape."""
        if not by_heads:
            return given.reshape(source)
        given = given.reshape(batch, tokens, -1, size).transpose(1, 2)
        return (given.transpose(-1, -2) if origin is arg and transposed else given).reshape(source)

    def heads_of(given: Tensor) -> Tensor:
        result = traced.evaluate(arg, {origin: given_as(given)})
        return (result.transpose(-1, -2) if transposed else result).reshape(batch, -1, tokens, size)

    ones = heads_of(torch.ones((batch, tokens, width), dtype=torch.float64))
    first = ones[:, :, 0]  # factors of a head's elements: rotations keep those of the first token
    factor = float(first[0, 0, -1])
    found = heads_of(torch.arange(rows * width, dtype=torch.float64))  # places in the origin
    found = found if factor in (0, 1) else found / factor
    columns = (found[0, :, 0] * (factor / first[0])).round().long() % width
    places = torch.arange(rows, dtype=torch.float64).reshape(batch, 1, tokens, 1) * width + columns[None, :, None]
    if torch.equal(found, places) if factor == 1 else torch.allclose(found, places, rtol=0, atol=1e-3):
        return Heads(origin, layer, by_heads, columns, factor, None, batch, tokens)
    constant = heads_of(torch.zeros((batch, tokens, width), dtype=torch.float64))
    gain = 1.0 if factor == 0 else float(first[0, 0, 0]) / factor  # of the elements that turn, as in LongRoPE
    factors = torch.tensor([factor, factor * gain], dtype=torch.float64).reshape(2, 1, 1, 1)
    if constant.abs().max() != 0 or factor == 0 or not torch.isclose(first, factors, rtol=1e-9, atol=0).any(0).all():
        if origin is not arg:
            return None
        raise refuse(node, "queries or keys that are changed between their linear layer and the attention",
                     "prun has rotary positions and a factor there")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((batch, tokens, width), generator=generator, dtype=torch.float64)
    plain = x[:, :, columns].transpose(1, 2) * factor
    result = heads_of(x)

    def turned(value: Tensor) -> Tensor:
        """Applies what the program does to heads [tokens, size], as if to the first head of the first sample."""
        given = torch.zeros(batch, tokens, width, dtype=torch.float64)
        given[:, :, columns[0]] = value
        return heads_of(given)[0, 0] / factor

    if torch.allclose(result.flatten().sort()[0], plain.flatten().sort()[0], rtol=1e-9, atol=1e-12):
        raise refuse(node, "attention between other rows than the tokens of a sample",
                     "q, k and v are [batch, heads, tokens, size] of x [batch, tokens, width] (batch_first=True)")
    rotation = find_rotation(turned, tokens, size, gain)
    if rotation is None or not torch.allclose(result, rotation.apply(plain), rtol=1e-5, atol=1e-6 * (tokens + 10)):
        return None  # nn.rotary has no such form: plain ops compute it
    if layer is not None:  # q and k may be reordered alike without changing their dot products
        columns, rotation = rotation.in_halves(columns), replace(rotation, interleaved=False)
    return Heads(origin, layer, by_heads, columns, factor, rotation, batch, tokens)


def attention(builder: Builder, node: Node) -> Op | None:
    """Attention of heads side by side: [batch, tokens, heads * size], as the layer after it reads them."""
    found = _heads_of_one(builder, node)
    if found is not None:
        return _emit(builder, node, [found])
    if node.target is not aten.cat.default or not isinstance(node.args[0], list | tuple):
        return None
    dim = node.args[1] if len(node.args) > 1 else 0
    several = [_heads_of_one(builder, builder.traced.strip(one)) for one in node.args[0] if isinstance(one, Node)]
    if dim not in (-1, len(shape_of(node)) - 1) or not all(several):
        return None
    return _emit(builder, node, [one for one in several if one is not None])


def _heads_of_one(builder: Builder, node: Node) -> tuple[Call, list[Heads]] | None:
    """Returns an attention whose heads a node puts side by side, with its q, k and v."""
    origin = builder.traced.source(node)
    call = None if origin is None else read_call(builder, origin)
    chosen = None if call is None else builder.traced.selection(node)
    if origin is None or call is None or chosen is None:
        return None
    index = chosen[1]
    three = [_heads(builder, origin, call.q), _heads(builder, origin, call.k, call.transposed),
             _heads(builder, origin, call.v)]
    batch, tokens = three[0].batch, three[0].tokens
    size = shape_of(origin)[-1]
    wanted = torch.arange(index.numel()).reshape(batch, -1, tokens, size).transpose(1, 2).reshape(-1)
    if not torch.equal(index.reshape(-1), wanted):
        raise refuse(node, "attention whose heads are not put side by side", "use y.transpose(1, 2).reshape(b, t, -1)")
    return call, three


def _check_alike(builder: Builder, calls: list[tuple[Call, list[Heads]]]) -> None:
    """Raises unless the attentions are one attention of all their heads."""
    (first, (q, k, v)) = calls[0]
    for call, three in calls:
        node = call.node
        if len(calls) > 1 and call.biases or (call.mask, call.softcap, call.dropout, three[0].rotation, three[0].columns.shape[1]) != (
                first.mask, first.softcap, first.dropout, q.rotation, q.columns.shape[1]) or not math.isclose(
                _scale(call, three), _scale(first, calls[0][1]), rel_tol=1e-9) or three[2].factor != v.factor:
            raise refuse(node, "attentions side by side that differ in more than their weights",
                         "an attention of prun has one mask, scale and size for all heads")


def _scale(call: Call, three: list[Heads]) -> float:
    """Returns the factor of the scores over 1 / sqrt(size), which is prun's."""
    return call.scale * three[0].factor * three[1].factor * math.sqrt(three[0].columns.shape[1])


def _pieces(several: list[Heads], chosen: list[Tensor]) -> list[tuple[Layer, Tensor | None]]:
    """Returns the layers and columns whose outputs are q, k and v side by side."""
    layer = several[0].layer
    if layer is not None and len({one.origin for one in several}) == 1:
        together, out = torch.cat([one.reshape(-1) for one in chosen]), layer.out
        return [(layer, None if torch.equal(together, torch.arange(out)) else together)]
    flat = [one.reshape(-1) for one in chosen]
    return [(one.layer, None if torch.equal(columns, torch.arange(one.layer.out)) else columns)
            for one, columns in zip(several, flat) if one.layer is not None]


def _together(builder: Builder, calls: list[tuple[Call, list[Heads]]]) -> bool:
    """Returns whether one attention of a fused layer computes them: q, k and v of one input, causal or without a mask."""
    every = [one for _, three in calls for one in three]
    if any(call.mask.window or call.mask.keys is not None or call.softcap or call.biases for call, _ in calls):
        return False
    if any(one.layer is None or one.tokens != every[0].tokens for one in every):
        return False
    sizes = {one.columns.shape[1] for one in every}
    alike = all(three[0].rotation == three[1].rotation and three[2].rotation is None for _, three in calls)
    biases = {one.layer.bias is None for one in every if one.layer is not None}
    return alike and len(sizes) == 1 and len(biases) == 1 and len(
        {builder.traced.strip(one.layer.x) for one in every if one.layer is not None}) == 1


def _rules(builder: Builder, call: Call, inputs: list[Op]) -> list[str]:
    """Returns the options of the mask and of the soft cap; adds the mask of keys to the inputs."""
    more = [f"window = {call.mask.window}"] if call.mask.window else []
    if call.mask.keys is not None:
        more.append(f"mask = {{{len(inputs)}}}")
        inputs.append(builder.input(call.mask.keys))
    for added in call.biases:
        more.append(f"bias = {{{len(inputs)}}}")
        inputs.append(bias.emit(builder, added, call.node))
    more += [f"softcap = {number_text(call.softcap)}"] if call.softcap else []
    return [*more, *_dropout(call)]


def _dropout(call: Call) -> list[str]:
    return [f"dropout = {number_text(call.dropout)}"] if call.dropout else []


def _emit(builder: Builder, node: Node, calls: list[tuple[Call, list[Heads]]]) -> Op:
    _check_alike(builder, calls)
    if not _together(builder, calls):
        if len(calls) > 1:
            raise refuse(node, "attentions side by side of queries, keys and values of different tensors",
                         "use one attention for all heads")
        return _emit_separate(builder, node, *calls[0])
    call, (q, _, v) = calls[0]
    heads, size = sum(len(three[0].columns) for _, three in calls), q.columns.shape[1]
    counts = [_shared(builder, one.node, k, v, len(q.columns)) for one, (q, k, v) in calls]
    shared = sum(counts)
    if len(calls) > 1 and shared != heads:
        raise refuse(node, "attentions side by side whose heads share keys", "use one attention for all heads")
    several = [three[i] for i in range(3) for _, three in calls]
    chosen = [one.columns for one in several]
    for i in range(len(calls), len(several)):
        count = counts[i % len(calls)]
        chosen[i] = chosen[i][::len(chosen[i]) // count]
    blocks = [sum(int(one.numel()) for one in chosen[i * len(calls):(i + 1) * len(calls)]) for i in range(3)]
    first = min((one.origin for one in several), key=lambda one: builder.traced.order[one])
    qkv = emit_layer(builder, first, _pieces(several, chosen), blocks, "qkv")
    if q.rotation is not None:
        options = f"size = {size}, heads = {heads + shared}{q.rotation.options(size)}"
        qkv = builder.emit("rotary", f"nn.rotary({{0}}, {{{{ {options} }}}})", [qkv], call.node, shape=qkv.shape)
    more = [f"kv_heads = {shared}"] if shared != heads else []
    more += [] if call.mask.causal else ["causal = false"]
    more += _dropout(call)
    scale, after = _scale(call, calls[0][1]), v.factor
    if scale < 0:
        raise refuse(call.node, f"scores scaled by {call.scale:g}", "prun's scale is positive")
    if not math.isclose(scale, 1, rel_tol=1e-6):
        # Both queries and keys take the root of the factor, and so do values, which the result has to undo.
        root = math.sqrt(scale)
        after /= root
        qkv = builder.emit("scale", f"{{0}} * {number_text(root)}", [qkv], call.node, shape=qkv.shape)
    tail = f", {{{{ {', '.join(more)} }}}}" if more else ""
    shape = (q.batch, q.tokens, heads * size)
    seen = builder.emit("attention", f"nn.attention({{0}}, {heads}{tail})", [qkv], call.node, shape=shape)
    return _scaled(builder, call.node, seen, after)


def _scaled(builder: Builder, node: Node, x: Op, factor: float) -> Op:
    if math.isclose(factor, 1, rel_tol=1e-12):
        return x
    return builder.emit("scale", f"{{0}} * {number_text(factor)}", [x], node, shape=x.shape)


def _emit_separate(builder: Builder, node: Node, call: Call, three: list[Heads]) -> Op:
    """Attention of q, k and v that are not outputs of layers of one input: with norms, or of other tokens."""
    q, k, v = three = _computed_once(builder, call, three)
    heads = len(q.columns)
    shared = _shared(builder, call.node, k, v, heads)
    splits = all(one.layer is not None or _of_heads(builder, one) for one in three)
    inputs = [_one(builder, call.node, one, role, count if splits else 0)
              for one, role, count in zip(three, "qkv", (heads, shared, shared))]
    more = [f"q = {{0}}, k = {{1}}, v = {{2}}, heads = {heads}"]
    more += [f"kv_heads = {shared}"] if shared != heads else []
    more += [] if call.mask.causal else ["causal = false"]
    more += _rules(builder, call, inputs)
    scale = _scale(call, three)
    if scale < 0:
        raise refuse(call.node, f"scores scaled by {call.scale:g}", "prun's scale is positive")
    if not math.isclose(scale, 1, rel_tol=1e-6):
        more.append(f"scale = {number_text(float(f'{scale / math.sqrt(q.columns.shape[1]):.12g}'))}")
    shape = (q.batch, q.tokens, heads * v.columns.shape[1])
    text = f"nn.attention {{{{ {', '.join(more)} }}}}"
    seen = builder.emit("attention" if splits else "whole attention", text, inputs, call.node, shape=shape)
    return _scaled(builder, call.node, seen, v.factor)


def _computed_once(builder: Builder, call: Call, three: list[Heads]) -> list[Heads]:
    """Returns q, k and v. Those of a layer that another one needs for plain ops, as k in MLA, come from these ops, too."""
    inside: set[Node] = set()
    for one in three:
        if one.layer is None and not _of_heads(builder, one):
            inside |= builder.traced.cone(one.origin, lambda _: True)[0]
    result = []
    for one, arg, transposed in zip(three, (call.q, call.k, call.v), (False, call.transposed, False)):
        again = one.layer is not None and one.origin in inside
        result.append((_read_heads(builder, call.node, arg, arg, transposed) if again else None) or one)
    return result


def _of_heads(builder: Builder, one: Heads) -> bool:
    """Returns whether the origin is a norm over the elements of each head of a linear layer."""
    found = norms.read(builder, one.origin)
    return found is not None and shape_of(found.x)[-1] == one.columns.shape[1] and _layer_of(builder, found.x) is not None


def _layer_of(builder: Builder, x: Node) -> tuple[Node, Layer] | None:
    """Returns the layer that a value is a view of."""
    source = builder.traced.source(x)
    layer = None if source is None else read_layer(builder, source)
    return None if source is None or layer is None else (source, layer)


def _one(builder: Builder, node: Node, one: Heads, role: str, splits: int) -> Op:
    """Returns q, k or v as [batch, tokens, heads * size]. `splits`: its heads, if tensor parallelism divides them."""
    count, size = one.columns.shape
    distinct = list(dict.fromkeys(tuple(row) for row in one.columns.tolist()))
    columns = torch.tensor(distinct)
    if role == "q" or len(distinct) == count:
        columns = one.columns
    if one.layer is not None:
        flat = columns.reshape(-1)
        every = torch.equal(flat, torch.arange(one.layer.out))
        x = emit_layer(builder, one.origin, [(one.layer, None if every else flat)])
    else:
        if not torch.equal(columns.reshape(-1), torch.arange(math.prod(shape_of(one.origin)) // one.batch // one.tokens)):
            raise refuse(node, "heads that are a part of a value, or in another order", "use a linear layer for each of q, k, v")
        x = tokens_of(builder, one)
    _mark(x, role if splits else "")
    if one.rotation is not None:
        options = f"size = {size}{one.rotation.options(size)}"
        x = builder.emit("rotary", f"nn.rotary({{0}}, {{{{ {options} }}}})", [x], node, shape=x.shape)
    return x


def _mark(x: Op, role: str) -> None:
    """Names the layer that computes a value by its role."""
    while x.kind != "linear" and x.inputs:
        x = x.inputs[0]
    if x.kind == "linear":
        x.role = role


def tokens_of(builder: Builder, one: Heads) -> Op:
    """Returns the origin of heads as [batch, tokens, heads * size]."""
    count, size = len({tuple(row) for row in one.columns.tolist()}), one.columns.shape[1]
    shape = (one.batch, one.tokens, count * size)
    found = norms.read(builder, one.origin)
    if found is not None and shape_of(found.x)[-1] == size:
        source = builder.traced.source(found.x)
        chosen = None if source is None else builder.traced.selection(found.x)
        plain = torch.arange(math.prod(shape)).reshape(one.batch, one.tokens, count, size)
        plain = plain.transpose(1, 2) if one.by_heads else plain
        layer = None if source is None else read_layer(builder, source)
        whole = chosen is not None and chosen[1].numel() == plain.numel() and torch.equal(chosen[1].reshape(plain.shape), plain)
        if source is not None and (whole or layer is not None):
            x = _layer_or_value(builder, found.x, source, shape)
            if x.shape == shape:
                x = builder.emit("reshape", f"{{0}}:unflatten(2, {{{{ {count}, {size} }}}})", [x], one.origin,
                                 shape=(*shape[:2], count, size))
                return _flat(builder, norms.emit(builder, one.origin, found, x), one.origin)
    try:
        x = operand(builder, one.origin)
    except ExportError as error:
        raise refuse(one.origin, "queries, keys or values that are changed between their linear layer and the attention",
                     f"prun has rotary positions, norms of heads and a factor there ({error.problem})") from error
    if one.by_heads:
        x = builder.emit("permute", "{0}:transpose(1, 2)", [x], one.origin, shape=(*shape[:2], count, size))
    return _flat(builder, x, one.origin) if x.shape == (*shape[:2], count, size) else reshaped(builder, x, shape, one.origin)


def _layer_or_value(builder: Builder, x: Node, source: Node, shape: tuple[int, ...]) -> Op:
    """Returns the heads x that are views of `source` as [batch, tokens, heads * size]."""
    layer = read_layer(builder, source)
    heads = None if layer is None else _read_heads(builder, x, x, source, False)
    if layer is None or heads is None or heads.rotation is not None or heads.factor != 1 or torch.equal(
            heads.columns.reshape(-1), torch.arange(layer.out)):
        return builder.value(source)
    return emit_layer(builder, source, [(layer, heads.columns.reshape(-1))])


def _flat(builder: Builder, x: Op, node: Node) -> Op:
    """Returns [batch, tokens, heads, size] as [batch, tokens, heads * size], for any number of tokens."""
    return builder.emit("reshape", "{0}:flatten(2, 3)", [x], node, shape=(*x.shape[:2], x.shape[2] * x.shape[3]))


def _shared(builder: Builder, node: Node, k: Heads, v: Heads, heads: int) -> int:
    """Returns the number of heads of keys and values, of which each is used by neighbouring heads of queries."""
    counts = []
    for one in (k, v):
        count = len({tuple(row) for row in one.columns.tolist()})
        if len(one.columns) == heads:
            group = heads // count
            if heads % count or not torch.equal(one.columns, one.columns[::group].repeat_interleave(group, 0)):
                raise refuse(node, "heads of queries that share keys in another order than neighbours",
                             "repeat keys and values with repeat_interleave(groups, 1)")
        counts.append(count)
    if counts[0] != counts[1]:
        raise refuse(node, f"{counts[0]} heads of keys and {counts[1]} of values", "prun has equally many")
    return counts[0]
