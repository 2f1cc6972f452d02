"""The scores of an attention: F.scaled_dot_product_attention, or softmax(q @ k.T * scale + mask) @ v by parts."""
from __future__ import annotations

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
class Call:
    """An attention at `node`: its inputs, and the factor and mask of its scores.

    `transposed`: k is [batch, heads, size, tokens].
    """

    node: Node
    q: Node
    k: Node
    v: Node
    scale: float
    causal: bool
    transposed: bool


def _problem(mask: Tensor, tokens: int) -> tuple[str, str]:
    """Returns why prun has no such mask, and the way round."""
    allowed = mask if mask.dtype == torch.bool else mask > -1e4
    if mask.dtype != torch.bool and bool((mask[allowed] != 0).any()):
        return ("numbers that are added to the scores (ALiBi, relative positions)",
                "prun's scores have no bias: use rotary positions or a table of positions")
    every = allowed.expand(*allowed.shape[:-2], tokens, tokens)
    if not bool(every.triu(1).any()):
        return ("an attention mask that hides earlier tokens (a sliding window)",
                "prun's tokens attend to all before them: the window must be at least as long as the context")
    return ("an attention mask that is neither causal nor empty", "prun has these two: is_causal=True, or no mask")


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
        _, leaves = builder.traced.cone(mask, lambda _: True)
        if leaves & set(builder.traced.parameters):
            raise refuse(node, "an attention mask that is computed from parameters (relative positions)",
                         "prun's scores have no bias: use rotary positions or a table of positions")
        raise refuse(node, "an attention mask that depends on the data",
                     "train without a padding mask (attention_mask); prun has no masks yet")
    causal = _is_causal(value, tokens)
    if causal is None:
        raise refuse(node, *_problem(value, tokens))
    return causal


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
    if shape_of(q)[-2] != shape_of(k)[-2]:
        raise refuse(node, "attention between tokens and other tokens", "prun has self-attention only")
    causal = bool(given["is_causal"]) or _mask(builder, node, given["attn_mask"], shape_of(q)[-2])
    scale = given.get("scale")
    return Call(node, q, k, v, shape_of(q)[-1] ** -0.5 if scale is None else float(scale), causal, False)


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
    product = next(iter(leaves)) if len(leaves) == 1 else None
    added = traced.constant(product.args[0]) if product is not None and product.target is aten.baddbmm.default else 0.0
    if product is None or (product.target not in _PRODUCTS and not isinstance(added, Tensor)):
        if any(one.target in _PRODUCTS for one in leaves):
            raise refuse(scores, "attention scores with a bias or a mask that is computed",
                         "prun's scores are q @ k.T with a factor and a causal mask or none")
        raise refuse(node, "attention scores that are not q @ k.T with a factor and a mask",
                     "use F.scaled_dot_product_attention")
    shape = shape_of(product)
    tokens = shape[-1]
    if shape[-2] != tokens:
        raise refuse(node, "attention between tokens and other tokens", "prun has self-attention only")
    zero = traced.evaluate(scores, {product: torch.zeros(shape, dtype=torch.float64) + added})
    one = traced.evaluate(scores, {product: torch.ones(shape, dtype=torch.float64) + added})
    causal = _is_causal(zero, tokens)
    if causal is None:
        raise refuse(scores, *_problem(zero, tokens))
    factor = float((one - zero).reshape(-1, tokens, tokens)[0, 0, 0])  # the first token attends to itself
    seen = zero > -1e4
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 50
    changed = traced.evaluate(scores, {product: x + added})
    if not torch.allclose(changed[seen], (x * factor)[seen], rtol=1e-9, atol=1e-12):
        raise refuse(scores, "attention scores that are changed other than by a factor and a mask",
                     "prun has no soft cap of scores")
    if isinstance(added, Tensor) and product.kwargs:
        raise refuse(product, "baddbmm with factors", "beta and alpha are 1")
    q, k = product.args[-2:]
    assert isinstance(q, Node) and isinstance(k, Node)
    return Call(node, traced.follow(q), traced.follow(k), traced.follow(v), factor, causal, True)


def read_call(builder: Builder, node: Node) -> Call | None:
    """Returns the attention that a node computes; None if it is something else."""
    return _fused(builder, node) or _by_parts(builder, node)
