"""The scores of an attention: F.scaled_dot_product_attention, or softmax(q @ k.T * scale + mask) @ v by parts."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder
from ..trace import ELEMENTWISE, aten, refuse, shape_of

_NO_DROPOUT = "prun has no dropout inside attention; set it to 0 (attention_dropout, attn_pdrop)"
_PRODUCTS = (aten.matmul.default, aten.bmm.default)
_MASKS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.where.self)


@dataclass
class Mask:
    """Which keys a query attends to. `keys`: an input [batch, keys] that hides keys where it is 0."""

    causal: bool = False
    window: int = 0  # 0 = none
    keys: Node | None = None


@dataclass
class Call:
    """An attention at `node`: its inputs, and the factor and mask of its scores.

    `transposed`: k is [batch, heads, size, tokens]. `softcap`: 0 = none.
    """

    node: Node
    q: Node
    k: Node
    v: Node
    scale: float
    mask: Mask
    transposed: bool
    softcap: float = 0.0


def _problem(mask: Tensor) -> tuple[str, str]:
    """Returns why prun has no such mask, and the way round."""
    allowed = mask if mask.dtype == torch.bool else mask > -1e4
    if mask.dtype != torch.bool and bool((mask[allowed] != 0).any()):
        return ("constant numbers that are added to the scores (ALiBi)",
                "prun's scores have a bias that is computed from parameters: use rotary positions or a table of positions")
    return ("an attention mask that is neither causal, a window nor empty",
            "prun has these: is_causal=True, windows, a mask of keys from data, or no mask")


def _pattern(mask: Tensor, queries: int, keys: int) -> Mask | None:
    """Returns a constant mask; None for one that prun does not have."""
    allowed = mask if mask.dtype == torch.bool else mask > -1e4
    if mask.dtype != torch.bool and bool((mask[allowed] != 0).any()):
        return None
    every = allowed.expand(*allowed.shape[:-2], queries, keys).reshape(-1, queries, keys)
    if not bool((every == every[0]).all()):
        return None
    one = every[0]
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    causal = bool((one <= (distance >= 0)).all()) and queries == keys and queries > 1
    window = int(distance.abs()[one].max()) + 1 if bool(one.any()) else 0
    windowed = window < max(queries, keys)
    wanted = (distance >= 0 if causal else torch.ones_like(one)) & (distance.abs() < window)
    return Mask(causal, window if windowed else 0) if torch.equal(one, wanted) else None


def _inputs_of(builder: Builder, mask: Node) -> list[Node] | None:
    """Returns the inputs that a mask is computed from; None if it depends on parameters."""
    _, leaves = builder.traced.cone(mask, lambda _: True)
    return None if leaves & set(builder.traced.parameters) else sorted(leaves, key=lambda one: one.name)


def _of_data(builder: Builder, node: Node, inputs: list[Node], evaluate: Callable[[dict[Node, Tensor]], Tensor],
             queries: int, keys: int) -> Mask:
    """Returns a mask that depends on one input of 0 and 1, and rules that do not."""
    source = inputs[0]
    value = source.meta["val"]
    if len(inputs) > 1 or len(shape_of(source)) != 2 or shape_of(source)[1] != keys or value.is_floating_point():
        raise refuse(node, "an attention mask that is computed from other data than a mask of keys",
                     "pass attention_mask [batch, tokens] of 0 and 1")

    def seen(given: Tensor) -> Tensor:
        result = evaluate({source: given.to(value.dtype)})
        allowed = result if result.dtype == torch.bool else result > -1e4
        return allowed.expand(*allowed.shape[:-2], queries, keys)

    rule = _pattern(seen(torch.ones(shape_of(source))), queries, keys)
    every = torch.rand(shape_of(source), generator=torch.Generator().manual_seed(1)) < 0.6
    every[:, 0] = True  # programs treat queries without keys differently
    if rule is not None:
        always = seen(torch.ones(shape_of(source)))
        wanted = always & every.reshape(-1, *[1] * (always.dim() - 2), keys)
        found, some = seen(every.long()), wanted.any(-1, keepdim=True)
        if torch.equal(found & some, wanted & some):
            builder.named_input(source)
            return Mask(rule.causal, rule.window, source)
    raise refuse(node, "an attention mask that depends on the data in a way that prun does not have",
                 "pass attention_mask [batch, tokens] of 0 and 1")


def _mask(builder: Builder, node: Node, mask: Any, queries: int, keys: int) -> Mask:
    if mask is None:
        return Mask()
    value = builder.traced.constant(mask)
    if not isinstance(value, Tensor):
        inputs = _inputs_of(builder, mask)
        if inputs is None:
            raise refuse(node, "an attention mask that is computed from parameters (relative positions)",
                         "the exporter has no biases of scores: use rotary positions or a table of positions")
        return _of_data(builder, node, inputs, lambda given: builder.traced.evaluate(mask, given), queries, keys)
    found = _pattern(value, queries, keys)
    if found is None:
        raise refuse(node, *_problem(value))
    return found


def _fused(builder: Builder, node: Node) -> Call | None:
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]
    defaults: list[object] = [None, None, None, None, 0.0, False]
    given: dict[str, Any] = dict(zip(names, [*node.args, *defaults[len(node.args):]]))
    given.update(node.kwargs)
    if given["dropout_p"]:
        raise refuse(node, f"dropout of {given['dropout_p']} on attention weights", _NO_DROPOUT)
    q, k, v = (builder.traced.follow(given[name]) for name in ("query", "key", "value"))
    mask = Mask(True) if given["is_causal"] else _mask(builder, node, given["attn_mask"], shape_of(q)[-2], shape_of(k)[-2])
    scale = given.get("scale")
    return Call(node, q, k, v, shape_of(q)[-1] ** -0.5 if scale is None else float(scale), mask, False)


def _by_parts(builder: Builder, node: Node) -> Call | None:
    traced = builder.traced
    if node.target not in _PRODUCTS:
        return None
    weights, v = node.args
    assert isinstance(weights, Node) and isinstance(v, Node)
    weights = traced.strip(weights)
    if weights.target is aten.dropout.default:
        raise refuse(weights, "dropout on attention weights", _NO_DROPOUT)
    if weights.target not in (aten.softmax.int, aten._softmax.default):
        return None
    if weights.args[1] not in (-1, len(shape_of(weights)) - 1):
        raise refuse(weights, f"softmax over dim {weights.args[1]}", "attention is softmax(scores, dim=-1) @ v")
    scores = traced.strip(weights.args[0])  # type: ignore[arg-type]
    _, leaves = traced.cone(scores, lambda one: one.target in ELEMENTWISE or one.target in _MASKS)
    products = [one for one in leaves if one.target in _PRODUCTS or one.target is aten.baddbmm.default]
    product = products[0] if len(products) == 1 else None
    added = traced.constant(product.args[0]) if product is not None and product.target is aten.baddbmm.default else 0.0
    if product is None or (product.target not in _PRODUCTS and not isinstance(added, Tensor)):
        raise refuse(node, "attention scores that are not q @ k.T with a factor and a mask",
                     "use F.scaled_dot_product_attention")
    inputs: list[Node] = []
    for one in leaves - {product}:
        below = _inputs_of(builder, one)
        if below is None:
            raise refuse(scores, "attention scores with a bias or a mask that is computed",
                         "prun's scores are q @ k.T with a factor and a mask of keys")
        inputs += [arg for arg in below if arg not in inputs]
    if isinstance(added, Tensor) and product.kwargs:
        raise refuse(product, "baddbmm with factors", "beta and alpha are 1")
    shape = shape_of(product)
    whole = {one: torch.ones(shape_of(one), dtype=one.meta["val"].dtype) for one in inputs}

    def scored(value: Tensor | float, given: dict[Node, Tensor]) -> Tensor:
        return traced.evaluate(scores, {**given, product: torch.zeros(shape, dtype=torch.float64) + value + added})

    zero = scored(0.0, whole)
    if inputs:
        mask = _of_data(builder, scores, inputs, lambda given: scored(0.0, given), shape[-2], shape[-1])
    else:
        found = _pattern(zero, shape[-2], shape[-1])
        if found is None:
            raise refuse(scores, *_problem(zero))
        mask = found
    seen = zero > -1e4
    factor, softcap = _factor(builder, scores, lambda value: scored(value, whole)[seen], int(seen.sum()), shape, seen)
    q, k = product.args[-2:]
    assert isinstance(q, Node) and isinstance(k, Node)
    return Call(node, traced.follow(q), traced.follow(k), traced.follow(v), factor, mask, True, softcap)


def _factor(builder: Builder, scores: Node, scored: Callable[[Tensor | float], Tensor], count: int,
            shape: tuple[int, ...], seen: Tensor) -> tuple[float, float]:
    """Returns the factor of the scores and their soft cap, 0 if they have none. `scored`: the scores of visible keys."""
    factor = float(scored(1e-6)[0]) / 1e-6
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 50
    changed, plain = scored(x), (x * factor).expand_as(seen)[seen]
    if torch.allclose(changed, plain, rtol=1e-9, atol=1e-9):
        return float(scored(1.0)[0]), 0.0
    cap = float(scored(1e9)[0])
    if cap > 0 and torch.allclose(changed, cap * torch.tanh(plain / cap), rtol=1e-6, atol=1e-9):
        return float(f"{factor:.9g}"), cap
    raise refuse(scores, "attention scores that are changed other than by a factor, a soft cap and a mask",
                 "prun has these")


def read_call(builder: Builder, node: Node) -> Call | None:
    """Returns the attention that a node computes; None if it is something else."""
    return _fused(builder, node) or _by_parts(builder, node)
