"""Norms over the last dim, as one op or by their parts.

A norm by parts is recognised by its numbers: the part of the graph between its input and its result is computed on
random rows and compared with the formula, with each small constant that occurs in it as epsilon.
"""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text, whole
from ..ops import Op
from ..trace import ELEMENTWISE, RESHAPES, aten, refuse, shape_of

_REDUCTIONS = {aten.mean.dim, aten.var.correction, aten.var.dim, aten.sum.dim_IntList, aten.var_mean.correction}
_BOTH = "prun's layernorm has both: use bias=True, elementwise_affine=True, or an RMSNorm"
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
    if node.target not in (aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor):
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


def _match(builder: Builder, node: Node, kind: str) -> tuple[Node, list[str], float] | None:
    traced = builder.traced
    found = _by_parts(builder, node)
    if found is None:
        return None
    x, own, small = found
    width = shape_of(x)[-1]
    if any(shape_of(one) != (width,) for one in own) or len(own) != (1 if kind == "rmsnorm" else 2):
        return None
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(shape_of(x), generator=generator, dtype=torch.float64)
    # Rows of different sizes, so that epsilon matters in some of them.
    rows *= torch.logspace(-4, 1, rows.numel() // width, dtype=torch.float64).reshape(*rows.shape[:-1], 1)
    values = [torch.randn(width, generator=generator, dtype=torch.float64) for _ in own]
    result = traced.evaluate(node, {x: rows, **dict(zip(own, values))})
    for eps in [*small, 0.0]:
        for order in ([0], ) if kind == "rmsnorm" else ([0, 1], [1, 0]):
            wanted = _formula(kind, rows, values[order[0]], values[order[1]] if len(order) > 1 else None, eps)
            if torch.allclose(result, wanted, rtol=1e-9, atol=1e-12):
                return x, [traced.parameters[own[i]] for i in order], eps
            if kind == "rmsnorm" and torch.allclose(
                    result, _formula("layernorm", rows, values[0], None, eps), rtol=1e-9, atol=1e-12):
                raise refuse(node, "a layernorm without a shift", _BOTH)
            plus = _formula(kind, rows, 1 + values[order[0]], values[order[1]] if len(order) > 1 else None, eps)
            if torch.allclose(result, plus, rtol=1e-9, atol=1e-12):
                if node.target is aten.mul.Tensor:
                    return None  # functions.py makes it by parts
                raise refuse(node, f"a {kind} whose scale is 1 + {traced.parameters[own[order[0]]]}",
                             "prun's norms multiply by the parameter itself: store the scale, which starts at 1")
    return None


def _emit(builder: Builder, node: Node, kind: str, x: Node, names: list[str], eps: float) -> Op:
    inputs = [builder.value(x)]
    tail = "" if eps == 1e-5 else f", {number_text(eps)}"
    return builder.emit(kind, f"nn.{kind}({{layer}}, {{0}}{tail})", inputs, node, layer=builder.layer_of(node),
                        weights=dict(zip([".weight", ".bias"], [whole(name) for name in names])))


def layernorm(builder: Builder, node: Node) -> Op | None:
    """nn.LayerNorm, or the same by its parts."""
    if node.target is aten.layer_norm.default:
        x, dims = node.args[0], node.args[1]
        scale, shift = (list(node.args[2:4]) + [None, None])[:2]
        eps = node.args[4] if len(node.args) > 4 else 1e-5
        assert isinstance(x, Node) and isinstance(eps, float) and isinstance(dims, list | tuple)
        if len(dims) != 1:
            raise refuse(node, f"a norm over {len(dims)} dims", "prun's norms are over the last dim")
        if scale is None or shift is None:
            missing = "scale or shift" if scale is shift else "scale" if scale is None else "shift"
            raise refuse(node, f"a layernorm without a {missing}", _BOTH)
        return _emit(builder, node, "layernorm", x, [builder.part(scale).parameter, builder.part(shift).parameter], eps)
    found = _match(builder, node, "layernorm")
    return None if found is None else _emit(builder, node, "layernorm", *found)


def rmsnorm(builder: Builder, node: Node) -> Op | None:
    """nn.RMSNorm, or the same by its parts."""
    if node.target is aten.rms_norm.default:
        x, scale = node.args[0], node.args[2] if len(node.args) > 2 else None
        eps = node.args[3] if len(node.args) > 3 else None
        assert isinstance(x, Node)
        if scale is None:
            raise refuse(node, "an RMSNorm without a scale", "use elementwise_affine=True")
        value = torch.finfo(torch.float32).eps if eps is None else float(eps)  # type: ignore[arg-type]
        return _emit(builder, node, "rmsnorm", x, [builder.part(scale).parameter], value)
    found = _match(builder, node, "rmsnorm")
    return None if found is None else _emit(builder, node, "rmsnorm", *found)
