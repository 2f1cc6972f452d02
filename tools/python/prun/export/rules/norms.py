"""Norms over the last dim, as one op or by their parts.

A norm by parts is recognised by its numbers: the part of the graph between its input and its result is computed on
random rows and compared with the formula, with each small constant that occurs in it as epsilon.
"""
from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text, whole
from ..ops import Op
from ..trace import ELEMENTWISE, RESHAPES, aten, refuse, shape_of

_REDUCTIONS = {aten.mean.dim, aten.var.correction, aten.var.dim, aten.sum.dim_IntList, aten.var_mean.correction}
_NORMS = {aten.layer_norm.default, aten.rms_norm.default}
_LAST = {aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor}  # the last op of a norm by parts
_SEARCHED = 24  # nodes that a norm by parts has at most


def _formula(kind: str, x: Tensor, scale: Tensor, shift: Tensor | None, eps: float) -> Tensor:
    if kind == "rmsnorm":
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * scale
    centred = x - x.mean(-1, keepdim=True)
    y = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * scale
    return y if shift is None else y + shift


def _by_parts(builder: Builder, node: Node) -> tuple[Node, list[Node], list[float]] | None:
    """Returns the input, the parameters and the small constants of what may be a norm by its parts."""
    traced = builder.traced
    if node.target not in _LAST:
        return None
    todo, seen = [node], {node}
    reduced: list[Node] = []
    while todo and len(seen) < _SEARCHED:
        one = todo.pop(0)
        if one.target in _REDUCTIONS:
            reduced.append(one)
            continue
        for arg in one.all_input_nodes:
            if arg not in seen and (arg.target in ELEMENTWISE or arg.target in _REDUCTIONS or traced.same(arg)):
                seen.add(arg)
                todo.append(arg)
    if not reduced:
        return None

    def inner(one: Node) -> bool:
        return one.target in ELEMENTWISE or one.target in _REDUCTIONS or one.target in RESHAPES

    candidates = []
    for one in reduced:
        below = one.args[0]
        for _ in range(4):
            if not isinstance(below, Node):
                break
            below = traced.follow(below)
            candidates.append(below)
            if below.target not in ELEMENTWISE or not below.args:
                break
            below = below.args[0]
    for x in candidates:
        inside, leaves = traced.cone(node, inner, [x])
        own = [leaf for leaf in leaves if leaf is not x]
        if x in leaves and all(leaf in traced.parameters for leaf in own):
            numbers = [traced.number(arg) for one in inside for arg in one.args]
            return x, own, sorted({abs(n) for n in numbers if n is not None and 0 < abs(n) < 0.1})
    return None


@dataclass
class Norm:
    """A norm of x over the last dim: its parameters, and whether the scale is 1 + its parameter, as in Gemma."""

    kind: str
    x: Node
    scale: str | None
    shift: str | None
    eps: float
    plus: bool = False


def _match(builder: Builder, node: Node) -> Norm | None:
    """Returns the norm by parts that a node is."""
    traced = builder.traced
    found = _by_parts(builder, node)
    if found is None:
        return None
    x, own, small = found
    width = shape_of(x)[-1]
    if any(shape_of(one) != (width,) for one in own) or len(own) > 2 or shape_of(x) != shape_of(node):
        return None
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(shape_of(x), generator=generator, dtype=torch.float64)
    # Rows of different sizes, so that epsilon matters in some of them.
    rows *= torch.logspace(-4, 1, rows.numel() // width, dtype=torch.float64).reshape(*rows.shape[:-1], 1)
    values = [torch.randn(width, generator=generator, dtype=torch.float64) for _ in own]
    result = traced.evaluate(node, {x: rows, **dict(zip(own, values))})
    names = [traced.parameters[one] for one in own]
    orders: list[tuple[int | None, int | None]] = [[(None, None)], [(0, None)], [(0, 1), (1, 0)]][len(own)]  # type: ignore[assignment]
    for eps in [*small, 0.0]:
        for (scale, shift), kind, plus in itertools.product(orders, ("rmsnorm", "layernorm"), (False, True)):
            if kind == "rmsnorm" and shift is not None or plus and scale is None:
                continue
            factor = torch.ones(width, dtype=torch.float64) if scale is None else values[scale] + plus
            wanted = _formula(kind, rows, factor, None if shift is None else values[shift], eps)
            if torch.allclose(result, wanted, rtol=1e-9, atol=1e-12):
                return Norm(kind, x, None if scale is None else names[scale], None if shift is None else names[shift],
                            eps, plus)
    return None


def _scale(builder: Builder, arg: Node | None) -> tuple[str | None, bool]:
    """Returns the parameter of a scale, and whether the scale is 1 + the parameter."""
    if arg is None:
        return None, False
    arg = builder.traced.follow(arg)
    if arg.target is aten.add.Tensor and not arg.kwargs:
        for name, one in ((arg.args[0], arg.args[1]), (arg.args[1], arg.args[0])):
            parameter = builder.traced.parameter(name)
            if parameter is not None and builder.traced.number(one) == 1:
                return parameter, True
    return builder.part(arg).parameter, False


def read(builder: Builder, node: Node) -> Norm | None:
    """Returns the norm that a node is: nn.LayerNorm, nn.RMSNorm, or one of these by parts."""
    if node not in builder.norms:
        builder.norms[node] = _read(builder, node)
    found: Norm | None = builder.norms[node]
    return found


def _read(builder: Builder, node: Node) -> Norm | None:
    if node.target not in _NORMS:
        return _match(builder, node)
    x, dims, *rest = node.args
    assert isinstance(x, Node) and isinstance(dims, list | tuple)
    if len(dims) != 1:
        raise refuse(node, f"a norm over {len(dims)} dims", "prun's norms are over the last dim")
    if node.target is aten.rms_norm.default:
        given, eps = (*rest, None, None)[:2]
        scale, plus = _scale(builder, given)  # type: ignore[arg-type]
        value = torch.finfo(node.meta["val"].dtype).eps if eps is None else float(eps)  # type: ignore[arg-type]
        return Norm("rmsnorm", x, scale, None, value, plus)
    given, shift, eps = (*rest, None, None, None)[:3]
    scale, plus = _scale(builder, given)  # type: ignore[arg-type]
    return Norm("layernorm", x, scale, None if shift is None else builder.part(shift).parameter,
                1e-5 if eps is None else float(eps), plus)  # type: ignore[arg-type]


def emit(builder: Builder, node: Node, norm: Norm, x: Op) -> Op:
    """Adds a norm of an op. A scale that is not the parameter itself is written out."""
    written = norm.scale is None or norm.plus  # outside of prun's function
    options = [] if norm.eps == 1e-5 else [f"eps = {number_text(norm.eps)}"]
    if written:
        options.append("affine = false")
    elif norm.kind == "layernorm" and norm.shift is None:
        options.append("bias = false")
    tail = f", {number_text(norm.eps)}" if len(options) == 1 and options[0].startswith("eps") else (
        f", {{{{ {', '.join(options)} }}}}" if options else "")
    text, weights, width = f"nn.{norm.kind}({{layer}}, {{0}}{tail})", {}, x.shape[-1]
    for suffix, name in ((".weight", norm.scale), (".bias", norm.shift)):
        if name is not None:
            weights[suffix] = whole(name)
    if written and norm.scale is not None:
        text += f' * (1 + nn.parameter({{layer_weight}}, {{{{ {width} }}}}))'
    if written and norm.shift is not None:
        text += f' + nn.parameter({{layer_bias}}, {{{{ {width} }}}})'
    kind = norm.kind if not written else "add" if norm.shift is not None else "mul" if norm.scale is not None else norm.kind
    return builder.emit(kind, text, [x], node, layer=builder.layer_of(node), weights=weights, shape=x.shape)


def norm(builder: Builder, node: Node) -> Op | None:
    """nn.LayerNorm and nn.RMSNorm, or the same by their parts."""
    if node.target not in _NORMS and node.target not in _LAST:
        return None
    found = read(builder, node)
    return None if found is None else emit(builder, node, found, builder.value(found.x))
