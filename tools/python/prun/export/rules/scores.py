"""The scores of an attention: F.scaled_dot_product_attention, or softmax(q @ k.T * scale + mask) @ v by parts."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder
from ..trace import ELEMENTWISE, RESHAPES, aten, refuse, shape_of
from . import layers
from .views import samples_of

_PRODUCTS = (aten.matmul.default, aten.bmm.default)
_MASKS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.where.self, aten.where.ScalarOther)
_HIDDEN = -1e4  # scores below it are those of masked keys


@dataclass
class Mask:
    """Which keys a query attends to. `keys`: an input [batch, keys] that hides keys where it is 0."""

    causal: bool = False
    window: int = 0  # 0 = none
    keys: Node | None = None


@dataclass
class Call:
    """An attention at `node`: its inputs, and the factor and mask of its scores.

    `transposed`: k is [batch, heads, size, tokens]. `softcap`: 0 = none. `dropout`: of the attention weights. `biases`:
    terms of the scores, at most one node or one constant tensor [heads or 1, queries or 1, keys].
    """

    node: Node
    q: Node
    k: Node
    v: Node
    scale: float
    mask: Mask
    transposed: bool
    softcap: float = 0.0
    dropout: float = 0.0
    biases: Sequence[Node | Tensor] = ()


def _pattern(allowed: Tensor, queries: int, keys: int) -> Mask | None:
    """Returns the rule of the keys that a query sees; None for one that prun does not have."""
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


class _Scores:
    """The terms that a program adds to the products of queries and keys: a mask, numbers, and a tensor of parameters.

    `root`: the node that adds them. `product`: the products, None if the root is the sum of these terms alone. Leaves of
    the root are values of data, and at most one of parameters, the bias.
    """

    def __init__(self, builder: Builder, node: Node, root: Node, product: Node | None, heads: tuple[int, ...]) -> None:
        self.builder, self.traced, self.node, self.root, self.product = builder, builder.traced, node, root, product
        self.shape = heads  # [batch, heads, queries, keys]
        self.added: Tensor | float = 0.0  # the product's node is alpha times the products plus this
        self.alpha = 1.0
        _, leaves = self.traced.cone(root, inner)
        self.inputs: list[Node] = []
        self.biases: list[Node] = []
        for one in sorted(leaves - {product}, key=lambda one: self.traced.order[one]):
            below = _inputs_of(builder, one)
            if below is None:
                self.biases.append(one)
            else:
                self.inputs += [arg for arg in below if arg not in self.inputs]
        if len(self.biases) > 1:
            raise refuse(node, "attention scores with several biases of parameters", "add them before the attention")
        self.whole = {one: torch.ones(shape_of(one), dtype=one.meta["val"].dtype) for one in self.inputs}

    def of(self, value: Tensor | float = 0.0, given: dict[Node, Tensor] | None = None,
           bias: Tensor | None = None) -> Tensor:
        """Returns the scores [batch, heads, queries, keys] if the products are `value`."""
        known = dict(self.whole if given is None else given)
        for one in self.biases:
            known[one] = torch.zeros(shape_of(one), dtype=torch.float64) if bias is None else bias
        if self.product is not None:
            shape = shape_of(self.product)
            plain = torch.zeros(shape, dtype=torch.float64) + (
                value.reshape(shape) if isinstance(value, Tensor) else value)
            known[self.product] = plain * self.alpha + self.added
        result = self.traced.evaluate(self.root, known)
        if result.dtype == torch.bool:
            result = torch.zeros(result.shape, dtype=torch.float64).masked_fill(~result, -1e30)
        if result.dim() == 3 and result.shape[0] == self.shape[0] * self.shape[1]:
            result = result.reshape(self.shape)
        return result.expand(self.shape)

    def mask(self) -> Mask:
        """Returns the mask; raises if prun has no such mask."""
        queries, keys = self.shape[-2:]
        always = self.of() > _HIDDEN
        rule = _pattern(always, queries, keys)
        if not self.inputs:
            if rule is None:
                raise refuse(self.node, "an attention mask that is neither causal, a window nor empty",
                             "prun has these: is_causal=True, windows, a mask of keys from data, or no mask")
            return rule
        source = self.inputs[0]
        value = source.meta["val"]
        if len(self.inputs) > 1 or len(shape_of(source)) != 2 or shape_of(source)[1] != keys or value.is_floating_point():
            raise refuse(self.node, "an attention mask that is computed from other data than a mask of keys",
                         "pass attention_mask [batch, tokens] of 0 and 1")
        every = torch.rand(shape_of(source), generator=torch.Generator().manual_seed(1)) < 0.6
        every[:, 0] = True  # programs treat queries without keys differently
        if rule is not None:
            wanted = always & every[:, None, None, :]
            found, some = self.of(given={source: every.to(value.dtype)}), wanted.any(-1, keepdim=True)
            if torch.equal((found > _HIDDEN) & some, wanted & some) and torch.equal(found[wanted & some],
                                                                                    self.of()[wanted & some]):
                self.builder.named_input(source)
                return Mask(rule.causal, rule.window, source)
        raise refuse(self.node, "an attention mask that depends on the data in a way that prun does not have",
                     "pass attention_mask [batch, tokens] of 0 and 1")

    def bias(self) -> list[Node | Tensor]:
        """Returns what is added to visible scores; raises if it is more than a sum."""
        zero = self.of()
        seen = zero > _HIDDEN
        result: list[Node | Tensor] = list(self.biases)
        numbers = torch.where(seen, zero, 0.0)
        if bool(numbers.any()):
            if not bool((numbers == numbers[:1]).all()):
                raise refuse(self.node, "numbers that are added to the scores and differ between samples",
                             "a bias of the scores is [heads, queries, keys]")
            result.append(_for_all_queries(numbers[0], seen[0]))
        if len(result) > 1:
            raise refuse(self.node, "attention scores with a bias of parameters and one of numbers",
                         "add the numbers to the parameters")
        for one in self.biases:
            shape = shape_of(one)
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            shape = (1,) * (4 - len(shape)) + shape
            if len(shape) > 4 or any(size not in (1, whole) for size, whole in zip(shape, self.shape)) or (
                    not torch.allclose((self.of(bias=x) - zero)[seen], x.reshape(shape).expand(self.shape)[seen],
                                       rtol=1e-9, atol=1e-9)):
                raise refuse(self.node, "attention scores that depend on parameters in another way than by a bias",
                             "prun's scores are q @ k.T with a factor, a bias and a mask of keys")
        return result


def _for_all_queries(numbers: Tensor, seen: Tensor) -> Tensor:
    """Returns [heads, queries, keys] as [heads, 1, keys] if each key adds one number to all queries that see it."""
    low = torch.where(seen, numbers, torch.inf).amin(1, keepdim=True)
    same = bool((~seen | (numbers == low)).all())
    return torch.where(low.isinf(), 0.0, low) if same else numbers


def inner(one: Node) -> bool:
    """Returns whether a node between the products and the softmax works on single scores."""
    return one.target in ELEMENTWISE or one.target in _MASKS or (one.target in RESHAPES and len(shape_of(one)) > 2)


def _inputs_of(builder: Builder, mask: Node) -> list[Node] | None:
    """Returns the inputs that a mask is computed from; None if it depends on parameters."""
    _, leaves = builder.traced.cone(mask, lambda _: True)
    return None if leaves & set(builder.traced.parameters) else sorted(leaves, key=lambda one: one.name)


def _fused(builder: Builder, node: Node) -> Call | None:
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]
    defaults: list[object] = [None, None, None, None, 0.0, False]
    given: dict[str, Any] = dict(zip(names, [*node.args, *defaults[len(node.args):]]))
    given.update(node.kwargs)
    q, k, v = (builder.traced.follow(given[name]) for name in ("query", "key", "value"))
    mask, biases, added = Mask(bool(given["is_causal"])), [], given["attn_mask"]
    if isinstance(added, Node):
        shape = shape_of(q)
        heads = (shape[0], *([1] if len(shape) == 3 else []), *shape[1:-1], shape_of(k)[-2])
        scores = _Scores(builder, node, added, None, heads)
        mask, biases = scores.mask(), scores.bias()  # type: ignore[assignment]
    scale = given.get("scale")
    return Call(node, q, k, v, shape_of(q)[-1] ** -0.5 if scale is None else float(scale), mask, False,
                dropout=float(given["dropout_p"]), biases=biases)


def _by_parts(builder: Builder, node: Node) -> Call | None:
    traced = builder.traced
    if node.target not in _PRODUCTS:
        return None
    weights, v = node.args
    assert isinstance(weights, Node) and isinstance(v, Node)
    weights = traced.strip(weights)
    dropout, below = layers.read_dropout(traced, weights) or (0.0, weights)
    weights = traced.strip(below)
    if weights.target not in (aten.softmax.int, aten._softmax.default):
        return None
    if weights.args[1] not in (-1, len(shape_of(weights)) - 1):
        raise refuse(weights, f"softmax over dim {weights.args[1]}", "attention is softmax(scores, dim=-1) @ v")
    root = traced.strip(weights.args[0])  # type: ignore[arg-type]
    _, leaves = traced.cone(root, inner)
    products = [one for one in leaves if one.target in _PRODUCTS or one.target is aten.baddbmm.default]
    product = products[0] if len(products) == 1 else None
    added = traced.constant(product.args[0]) if product is not None and product.target is aten.baddbmm.default else 0.0
    if product is None or (product.target not in _PRODUCTS and not isinstance(added, Tensor)):
        raise refuse(node, "attention scores that are not q @ k.T with a factor and a mask",
                     "use F.scaled_dot_product_attention")
    shape = shape_of(product)
    batch = shape[0] if len(shape) == 4 else samples_of(builder)
    if len(shape) not in (3, 4) or math.prod(shape[:-2]) % batch:
        return None
    scores = _Scores(builder, root, root, product, (batch, math.prod(shape[:-2]) // batch, *shape[-2:]))
    scores.alpha = builder.traced.number(product.kwargs.get("alpha", 1)) or 0.0
    scores.added = added * (builder.traced.number(product.kwargs.get("beta", 1)) or 0.0)
    mask, biases = scores.mask(), scores.bias()
    factor, softcap = _factor(scores)
    q, k = product.args[-2:]
    assert isinstance(q, Node) and isinstance(k, Node)
    return Call(node, traced.follow(q), traced.follow(k), traced.follow(v), factor, mask, True, softcap, dropout, biases)


def _factor(scores: _Scores) -> tuple[float, float]:
    """Returns the factor of the scores and their soft cap, 0 if they have none."""
    zero = scores.of()
    seen = zero > _HIDDEN

    def changed(value: Tensor | float) -> Tensor:
        return (scores.of(value) - zero)[seen]

    factor = float(changed(1e-6)[0]) / 1e-6
    x = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 50
    result, plain = changed(x), (x * factor)[seen]
    if torch.allclose(result, plain, rtol=1e-9, atol=1e-9):
        return float(changed(1.0)[0]), 0.0
    cap = float(changed(1e9)[0])
    if cap > 0 and torch.allclose(result, cap * torch.tanh(plain / cap), rtol=1e-6, atol=1e-9):
        return float(f"{factor:.9g}"), cap
    raise refuse(scores.root, "attention scores that are changed other than by a factor, a soft cap, a bias and a mask",
                 "prun has these")


def read_call(builder: Builder, node: Node) -> Call | None:
    """Returns the attention that a node computes; None if it is something else."""
    return _fused(builder, node) or _by_parts(builder, node)
