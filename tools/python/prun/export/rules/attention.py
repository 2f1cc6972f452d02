"""Attention over heads of linear layers, with rotary positions.

Between the linear layers and the attention, programs reshape, transpose, repeat heads, rotate and scale in many ways.
All of them are linear in the layer's outputs, so this file computes them on chosen numbers: the results at position 0,
which no rotation changes, name the column that each element of a head comes from; a half of ones gives the angles.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder
from ..ops import Op
from ..trace import ELEMENTWISE, MOVEMENT, aten, is_getitem, refuse, shape_of
from .layers import Layer, emit_layer, read_layer
from .rotary import Rotation, find_rotation

_PARTS = {aten.cat.default, aten.stack.default, aten.roll.default}
_LINEAR = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.mul.Scalar}


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


@dataclass
class Call:
    """An attention: its inputs, and the factor and mask of its scores."""

    q: Node
    k: Node
    v: Node
    scale: float
    causal: bool


def _inner(one: Node) -> bool:
    return one.target in MOVEMENT or is_getitem(one) or one.target in _LINEAR or one.target in _PARTS


def _heads(builder: Builder, node: Node, arg: Node) -> Heads:
    traced = builder.traced
    inside, leaves = traced.cone(arg, _inner)
    origin = next(iter(leaves)) if len(leaves) == 1 else None
    layer = None if origin is None else read_layer(builder, origin)
    shape = shape_of(arg)
    if layer is None or origin is None or len(shape) != 4:
        raise refuse(node, "attention over tensors that are not the heads of one linear layer each",
                     "q, k and v are [batch, heads, tokens, size], each from one nn.Linear; norms of q and k "
                     "are not supported yet")
    batch, heads, tokens, size = shape
    source = shape_of(origin)
    width = source[-1]
    if math.prod(source[:-1]) != batch * tokens:
        raise refuse(node, "attention between tokens and other tokens", "prun has self-attention only")
    constant = traced.evaluate(arg, {origin: torch.zeros(source, dtype=torch.float64)})
    ones = traced.evaluate(arg, {origin: torch.ones(source, dtype=torch.float64)})
    factor = float(ones[0, 0, 0, 0])
    first = ones[:, :, 0]
    if constant.abs().max() != 0 or factor == 0 or (first - factor).abs().max() > 1e-9 * abs(factor):
        raise refuse(node, "heads that are changed before attention other than by rotation and a factor")
    numbered = torch.arange(width, dtype=torch.float64).expand(source).contiguous()
    columns = (traced.evaluate(arg, {origin: numbered})[0, :, 0] / factor).round().long()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(source, generator=generator, dtype=torch.float64)
    plain = x.reshape(batch, tokens, width)[:, :, columns].transpose(1, 2) * factor
    result = traced.evaluate(arg, {origin: x})
    if torch.allclose(result, plain, rtol=1e-9, atol=1e-12):
        return Heads(origin, layer, columns, factor, None)

    def turned(value: Tensor) -> Tensor:
        """Applies what the program does to heads [tokens, size], as if to the first head of the first sample."""
        given = torch.zeros(batch, tokens, width, dtype=torch.float64)
        given[:, :, columns[0]] = value
        return traced.evaluate(arg, {origin: given.reshape(source)})[0, 0] / factor

    rotation = find_rotation(turned, tokens, size)
    if rotation is None or not torch.allclose(result, rotation.apply(plain), rtol=1e-5, atol=1e-5):
        raise refuse(node, "rotary positions of a kind that prun does not have",
                     "prun rotates pairs (i, i + size/2) by base^(-2i/size), all of a head, with linear or llama3 scaling")
    if rotation.interleaved:  # q and k may be reordered alike without changing their dot products
        columns = torch.cat([columns[:, 0::2], columns[:, 1::2]], -1)
    return Heads(origin, layer, columns, factor, rotation)


def _is_causal(mask: Tensor, tokens: int) -> bool | None:
    """Returns whether a mask is causal, whether it is empty (False), or None for others."""
    allowed = mask if mask.dtype == torch.bool else mask > -1e4
    if mask.dtype != torch.bool and bool((mask[allowed] != 0).any()):
        return None
    every = allowed.expand(*allowed.shape[:-2], tokens, tokens).reshape(-1, tokens, tokens)
    if bool(every.all()):
        return False
    lower = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return True if torch.equal(every, lower.expand(every.shape)) else None


def _mask(builder: Builder, node: Node, mask: Any, tokens: int) -> bool:
    if mask is None:
        return False
    value = builder.traced.constant(mask)
    if not isinstance(value, Tensor):
        raise refuse(node, "an attention mask that depends on the data",
                     "train without a padding mask; prun has no masks yet")
    causal = _is_causal(value, tokens)
    if causal is None:
        raise refuse(node, "an attention mask that is neither causal nor empty",
                     "a sliding window must be at least as long as the context")
    return causal


def _fused(builder: Builder, node: Node) -> Call | None:
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]
    defaults: list[object] = [None, None, None, None, 0.0, False]
    given: dict[str, Any] = dict(zip(names, [*node.args, *defaults[len(node.args):]]))
    given.update(node.kwargs)
    if given["dropout_p"]:
        raise refuse(node, f"dropout of {given['dropout_p']} on attention weights",
                     "prun has no dropout inside attention; set it to 0 (attention_dropout, attn_pdrop)")
    q, k, v = (builder.traced.follow(given[name]) for name in ("query", "key", "value"))
    tokens = shape_of(q)[-2]
    causal = bool(given["is_causal"]) or _mask(builder, node, given["attn_mask"], tokens)
    scale = given.get("scale")
    return Call(q, k, v, shape_of(q)[-1] ** -0.5 if scale is None else float(scale), causal)


def _by_parts(builder: Builder, node: Node) -> Call | None:
    """Reads softmax(q @ k.T * scale + mask) @ v."""
    traced = builder.traced
    if node.target is not aten.matmul.default:
        return None
    weights, v = node.args
    assert isinstance(weights, Node) and isinstance(v, Node)
    weights = traced.strip(weights)
    if weights.target is aten.dropout.default:
        raise refuse(weights, "dropout on attention weights", "prun has no dropout inside attention; set it to 0")
    if weights.target not in (aten.softmax.int, aten._softmax.default):
        return None
    scores = traced.strip(weights.args[0])  # type: ignore[arg-type]

    def inner(one: Node) -> bool:
        return one.target in ELEMENTWISE or one.target in (aten.masked_fill.Scalar, aten.where.self,
                                                           aten.masked_fill.Tensor)

    _, leaves = traced.cone(scores, inner)
    product = next(iter(leaves)) if len(leaves) == 1 else None
    if product is None or product.target is not aten.matmul.default:
        raise refuse(node, "attention scores that are not q @ k.T with a factor and a mask", "")
    shape = shape_of(product)
    tokens = shape[-1]
    zero = traced.evaluate(scores, {product: torch.zeros(shape, dtype=torch.float64)})
    one = traced.evaluate(scores, {product: torch.ones(shape, dtype=torch.float64)})
    causal = _is_causal(zero, tokens)
    factor = float(one[0, 0, 0, 0] - zero[0, 0, 0, 0])
    seen = zero > -1e4
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if causal is None or not torch.allclose(
            traced.evaluate(scores, {product: x})[seen], (x * factor)[seen], rtol=1e-9, atol=1e-12):
        raise refuse(scores, "attention scores that are changed other than by a factor and a causal mask", "")
    q, k = product.args
    assert isinstance(q, Node) and isinstance(k, Node)
    return Call(traced.follow(q), traced.follow(k), traced.follow(v), factor, causal)


def attention(builder: Builder, node: Node) -> Op | None:
    """Attention of heads side by side: [batch, tokens, heads * size], as the layer after it reads them."""
    chosen = builder.traced.selection(node)
    if chosen is None:
        return None
    origin, index = chosen
    call = _fused(builder, origin) or _by_parts(builder, origin)
    if call is None:
        return None
    batch, heads, tokens, size = shape_of(origin)
    wanted = torch.arange(index.numel()).reshape(batch, heads, tokens, size).transpose(1, 2).reshape(-1)
    if not torch.equal(index.reshape(-1), wanted):
        raise refuse(node, "attention whose heads are not put side by side", "use y.transpose(1, 2).reshape(b, t, -1)")
    return _emit(builder, origin, call, heads, size, (batch, tokens, heads * size))




def _emit(builder: Builder, node: Node, call: Call, heads: int, size: int, shape: tuple[int, ...]) -> Op:
    q = _heads(builder, node, call.q)
    k = _heads(builder, node, _keys(builder, node, call))
    v = _heads(builder, node, call.v)
    if not q.rotation == k.rotation or v.rotation is not None:
        raise refuse(node, "queries and keys with different rotations, or values with one")
    scale = call.scale * q.factor * k.factor
    if not math.isclose(scale, size ** -0.5, rel_tol=1e-6):
        raise refuse(node, f"scores scaled by {scale:g}", f"prun scales by 1 / sqrt({size}) = {size ** -0.5:g}; "
                     "scale the weight of the queries instead")
    if v.factor != 1:
        raise refuse(node, f"values scaled by {v.factor:g}", "scale the weight of the values instead")
    if len({builder.traced.strip(one.layer.x) for one in (q, k, v)}) != 1:
        raise refuse(node, "queries, keys and values of different tensors", "prun has self-attention only")
    shared = _shared(builder, node, k, v, heads)
    columns = [q.columns, k.columns[::heads // shared] if len(k.columns) == heads else k.columns,
               v.columns[::heads // shared] if len(v.columns) == heads else v.columns]
    blocks = [int(one.numel()) for one in columns]
    if q.origin is k.origin is v.origin:
        together = torch.cat([one.reshape(-1) for one in columns])
        plain = torch.equal(together, torch.arange(q.layer.out))
        pieces: list[tuple[Layer, Tensor | None]] = [(q.layer, None if plain else together)]
    else:
        pieces = []
        for one, chosen in zip((q, k, v), columns):
            flat = chosen.reshape(-1)
            pieces.append((one.layer, None if torch.equal(flat, torch.arange(one.layer.out)) else flat))
    first = min((q.origin, k.origin, v.origin), key=lambda one: builder.traced.order[one])
    qkv = emit_layer(builder, first, pieces, blocks, "qkv")
    if q.rotation is not None:
        options = f"size = {size}, heads = {heads + shared}{q.rotation.options()}"
        qkv = builder.emit("rotary", f"nn.rotary({{0}}, {{{{ {options} }}}})", [qkv], node, shape=qkv.shape)
    more = [f"kv_heads = {shared}"] if shared != heads else []
    more += [] if call.causal else ["causal = false"]
    tail = f", {{{{ {', '.join(more)} }}}}" if more else ""
    return builder.emit("attention", f"nn.attention({{0}}, {heads}{tail})", [qkv], node, shape=shape)


def _keys(builder: Builder, node: Node, call: Call) -> Node:
    """Returns the keys as [batch, heads, tokens, size]; by parts they are transposed for the product."""
    if node.target is aten.scaled_dot_product_attention.default:
        return call.k
    k = call.k
    if k.target is aten.transpose.int and set(k.args[1:3]) in ({2, 3}, {-2, -1}) and isinstance(
            k.args[0], Node):
        return k.args[0]
    raise refuse(node, "keys that are not transposed for q @ k.T", "use q @ k.transpose(-2, -1)")


def _shared(builder: Builder, node: Node, k: Heads, v: Heads, heads: int) -> int:
    """Returns the number of heads of keys and values, of which each is used by neighbouring heads of queries."""
    counts = []
    for one in (k, v):
        count = len({tuple(row) for row in one.columns.tolist()})
        if len(one.columns) == heads:
            group = heads // count
            if heads % count or not torch.equal(one.columns, one.columns[::group].repeat_interleave(group, 0)):
                raise refuse(node, "heads of queries that share keys in another order than neighbours", "")
        counts.append(count)
    if counts[0] != counts[1]:
        raise refuse(node, f"{counts[0]} heads of keys and {counts[1]} of values", "prun has equally many")
    return counts[0]
