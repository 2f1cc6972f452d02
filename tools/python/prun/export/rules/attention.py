"""Attention over heads of linear layers, with rotary positions.

Between the linear layers and the attention, programs reshape, transpose, repeat heads, rotate and scale in many ways.
All of them are linear in the layer's outputs, so this file computes them on chosen numbers: the results at position 0,
which no rotation changes, name the column that each element of a head comes from; a half of ones gives the angles.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text
from ..errors import ExportError
from ..ops import Op
from ..trace import MOVEMENT, aten, is_getitem, refuse, shape_of
from .layers import Layer, emit_layer, read_layer
from .rotary import Rotation, find_rotation, problem_of
from .scores import Call, read_call

_PARTS = {aten.cat.default, aten.stack.default, aten.roll.default}
_LINEAR = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.mul.Scalar}
_NORMS = {aten.rms_norm.default, aten.layer_norm.default, aten.mean.dim, aten.var.correction, aten.var.dim,
          aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim}
_SQUARES = {aten.pow.Tensor_Scalar, aten.square.default}
_BELOW = 40  # nodes that are searched for a norm


@dataclass
class Heads:
    """One of q, k and v: [batch, heads, tokens, size] taken from a linear layer.

    `columns` [heads, size]: the layer's output that each element comes from; `factor` multiplies all of them.
    """

    origin: Node
    layer: Layer
    columns: Tensor
    factor: float
    rotation: Rotation | None
    batch: int
    tokens: int


def _inner(one: Node) -> bool:
    return one.target in MOVEMENT or is_getitem(one) or one.target in _LINEAR or one.target in _PARTS


def _of_layer(builder: Builder, norm: Node) -> bool:
    """Returns whether a norm, or its mean, is of the result of a linear layer."""
    below = norm.args[0]
    while isinstance(below, Node) and (below.target in _SQUARES or builder.traced.same(below)):
        below = below.args[0]
    source = builder.traced.source(below) if isinstance(below, Node) else None
    return source is not None and read_layer(builder, builder.traced.follow(source)) is not None


def _refuse_origin(builder: Builder, node: Node, leaves: set[Node]) -> ExportError:
    """Returns the error for queries, keys or values that are not the heads of one linear layer."""
    todo, seen = list(leaves), set(leaves)
    while todo and len(seen) < _BELOW:
        one = todo.pop(0)
        if one.target in _NORMS and _of_layer(builder, one):
            return refuse(one, "a norm between the linear layers of queries and keys and the attention",
                          "prun has none there yet: use a model without norms of q and k (qk_norm, qk_layernorm)")
        if read_layer(builder, one) is None:
            more = [arg for arg in one.all_input_nodes if arg not in seen]
            seen.update(more)
            todo.extend(more)
    return refuse(node, "attention over tensors that are not the heads of one linear layer each",
                  "q, k and v are [batch, heads, tokens, size], each from one nn.Linear of the same input")


def _heads(builder: Builder, node: Node, arg: Node, transposed: bool = False) -> Heads:
    """Reads q, k or v of the attention at `node`; `transposed`: arg is [.., size, tokens]."""
    traced = builder.traced
    _, leaves = traced.cone(arg, lambda one: _inner(one) and read_layer(builder, one) is None)
    origin = next(iter(leaves)) if len(leaves) == 1 else None
    layer = None if origin is None else read_layer(builder, origin)
    shape = shape_of(arg)
    if layer is None or origin is None:
        raise _refuse_origin(builder, node, leaves)
    if len(shape) not in (3, 4):
        raise refuse(node, f"attention over tensors with {len(shape)} dims", "heads are [batch, heads, tokens, size]")
    source, width = shape_of(origin), shape_of(origin)[-1]
    size, tokens = (shape[-2], shape[-1]) if transposed else (shape[-1], shape[-2])
    rows = math.prod(source[:-1])
    batch = shape[0] if len(shape) == 4 else rows // tokens  # of three dims, heads may be joined to the batch
    if batch * tokens != rows:
        raise refuse(node, "attention between tokens and other tokens", "prun has self-attention only")

    def heads_of(given: Tensor) -> Tensor:
        result = traced.evaluate(arg, {origin: given.reshape(source)})
        return (result.transpose(-1, -2) if transposed else result).reshape(batch, -1, tokens, size)

    ones = heads_of(torch.ones((), dtype=torch.float64).expand(source))
    factor = float(ones[0, 0, 0, 0])
    found = heads_of(torch.arange(rows * width, dtype=torch.float64))  # places in the layer's result
    found = found if factor in (0, 1) else found / factor
    columns = found[0, :, 0].round().long() % width
    places = torch.arange(rows, dtype=torch.float64).reshape(batch, 1, tokens, 1) * width + columns[None, :, None]
    if torch.equal(found, places) if factor == 1 else torch.allclose(found, places, rtol=0, atol=1e-3):
        return Heads(origin, layer, columns, factor, None, batch, tokens)
    constant = heads_of(torch.zeros(source, dtype=torch.float64))
    first = ones[:, :, 0]
    if constant.abs().max() != 0 or factor == 0 or (first - factor).abs().max() > 1e-9 * abs(factor):
        raise refuse(node, "queries or keys that are changed between their linear layer and the attention",
                     "prun has rotary positions and a factor there")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(source, generator=generator, dtype=torch.float64)
    plain = x.reshape(batch, tokens, width)[:, :, columns].transpose(1, 2) * factor
    result = heads_of(x)

    def turned(value: Tensor) -> Tensor:
        """Applies what the program does to heads [tokens, size], as if to the first head of the first sample."""
        given = torch.zeros(batch, tokens, width, dtype=torch.float64)
        given[:, :, columns[0]] = value
        return heads_of(given)[0, 0] / factor

    if torch.allclose(result.flatten().sort()[0], plain.flatten().sort()[0], rtol=1e-9, atol=1e-12):
        raise refuse(node, "attention between other rows than the tokens of a sample",
                     "q, k and v are [batch, heads, tokens, size] of x [batch, tokens, width] (batch_first=True)")
    rotation = find_rotation(turned, tokens, size)
    if rotation is None or not torch.allclose(result, rotation.apply(plain), rtol=1e-5, atol=1e-6 * (tokens + 10)):
        raise refuse(node, *problem_of(turned, tokens, size))
    # q and k may be reordered alike without changing their dot products.
    return Heads(origin, layer, rotation.in_halves(columns), factor, rotation, batch, tokens)


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
        if three[0].rotation != three[1].rotation or three[2].rotation is not None:
            raise refuse(node, "queries and keys with different rotations, or values with one")
        if len({builder.traced.strip(one.layer.x) for one in (q, *three)}) != 1:
            raise refuse(node, "queries, keys and values of different tensors", "prun has self-attention only")
        if (call.causal, three[0].rotation, three[0].columns.shape[1]) != (
                first.causal, q.rotation, q.columns.shape[1]) or not math.isclose(
                _scale(call, three), _scale(first, calls[0][1]), rel_tol=1e-9) or three[2].factor != v.factor:
            raise refuse(node, "attentions side by side that differ in more than their weights",
                         "an attention of prun has one mask, scale and size for all heads")


def _scale(call: Call, three: list[Heads]) -> float:
    """Returns the factor of the scores over 1 / sqrt(size), which is prun's."""
    return call.scale * three[0].factor * three[1].factor * math.sqrt(three[0].columns.shape[1])


def _pieces(several: list[Heads], chosen: list[Tensor]) -> list[tuple[Layer, Tensor | None]]:
    """Returns the layers and columns whose outputs are q, k and v side by side."""
    if len({one.origin for one in several}) == 1:
        together, out = torch.cat([one.reshape(-1) for one in chosen]), several[0].layer.out
        return [(several[0].layer, None if torch.equal(together, torch.arange(out)) else together)]
    flat = [one.reshape(-1) for one in chosen]
    return [(one.layer, None if torch.equal(columns, torch.arange(one.layer.out)) else columns)
            for one, columns in zip(several, flat)]


def _emit(builder: Builder, node: Node, calls: list[tuple[Call, list[Heads]]]) -> Op:
    _check_alike(builder, calls)
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
    scale, after = _scale(call, calls[0][1]), v.factor
    if not math.isclose(scale, 1, rel_tol=1e-6):
        if scale < 0:
            raise refuse(call.node, f"scores scaled by {call.scale:g}", "prun's scale is positive")
        # Both queries and keys take the root of the factor, and so do values, which the result has to undo.
        root = math.sqrt(scale)
        after /= root
        qkv = builder.emit("scale", f"{{0}} * {number_text(root)}", [qkv], call.node, shape=qkv.shape)
    more = [f"kv_heads = {shared}"] if shared != heads else []
    more += [] if call.causal else ["causal = false"]
    tail = f", {{{{ {', '.join(more)} }}}}" if more else ""
    shape = (q.batch, q.tokens, heads * size)
    seen = builder.emit("attention", f"nn.attention({{0}}, {heads}{tail})", [qkv], call.node, shape=shape)
    if math.isclose(after, 1, rel_tol=1e-12):
        return seen
    return builder.emit("scale", f"{{0}} * {number_text(after)}", [seen], call.node, shape=shape)


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
