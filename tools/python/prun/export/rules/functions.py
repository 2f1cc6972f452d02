"""Functions of elements with broadcasting, reductions, softmax, products of activations and cumulative sums.

These rules come last: what layers, norms, attention and losses contain has been recognised before.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text
from ..ops import Op, Part, Weight
from ..trace import aten, is_getitem, op_name, refuse, shape_of
from . import data
from .views import constant, operand

_UNARY = {
    aten.exp.default: "nn.exp({0})", aten.log.default: "nn.log({0})", aten.sqrt.default: "nn.sqrt({0})",
    aten.rsqrt.default: "nn.rsqrt({0})", aten.abs.default: "nn.abs({0})", aten.sign.default: "nn.sign({0})",
    aten.sin.default: "nn.sin({0})", aten.cos.default: "nn.cos({0})", aten.sigmoid.default: "nn.sigmoid({0})",
    aten.silu.default: "nn.silu({0})", aten.reciprocal.default: "(1 / ({0}))", aten.relu.default: "nn.relu({0})",
    aten.tanh.default: "nn.tanh({0})", aten.detach.default: "nn.detach({0})",
    aten.log_sigmoid.default: "(-nn.softplus(-({0})))", aten.square.default: "(({0}) ^ 2)",
    aten.expm1.default: "(nn.exp({0}) - 1)", aten.log1p.default: "nn.log(({0}) + 1)",
}
_BINARY = {
    aten.add.Tensor: "({0}) + ({1})", aten.add_.Tensor: "({0}) + ({1})", aten.sub.Tensor: "({0}) - ({1})",
    aten.mul.Tensor: "({0}) * ({1})", aten.div.Tensor: "({0}) / ({1})", aten.pow.Tensor_Tensor: "({0}) ^ ({1})",
    aten.pow.Tensor_Scalar: "({0}) ^ ({1})", aten.pow.Scalar: "({0}) ^ ({1})", aten.rsub.Scalar: "{1} - ({0})",
    aten.maximum.default: "nn.maximum({0}, {1})", aten.minimum.default: "nn.minimum({0}, {1})",
    aten.clamp_min.default: "nn.maximum({0}, {1})", aten.clamp_max.default: "nn.minimum({0}, {1})",
    aten.clamp_min.Tensor: "nn.maximum({0}, {1})", aten.clamp_max.Tensor: "nn.minimum({0}, {1})",
}
_COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
                "ne": "not_equal"}
_REDUCTIONS = {aten.mean.dim: "mean", aten.sum.dim_IntList: "sum", aten.amax.default: "max"}


def _own_shape(builder: Builder, node: Node, arg: Node) -> Op:
    """Returns the op of an operand, which must have the operand's own shape."""
    return operand(builder, arg)


def rows_of(builder: Builder, arg: Node) -> tuple[str, Part] | None:
    """Returns the dims and the part of a parameter, or of its rows at constant ids, such as positions or token types."""
    traced = builder.traced
    while traced.same(arg) or arg.target is aten.expand.default or (
            arg.target is aten.unsqueeze.default and arg.args[1] == 0):
        before = traced.follow(arg) if traced.same(arg) else arg.args[0]
        if not isinstance(before, Node):
            return None
        arg = before
    name = traced.parameter(arg)
    if name is not None:
        return ", ".join(str(size) for size in traced.tensors[name].shape or (1,)), Part(name)
    if arg.target is not aten.embedding.default or arg.args[1] not in traced.constants:
        return None
    name = traced.parameter(arg.args[0])
    ids = traced.constants[arg.args[1]]
    ids = ids.reshape(-1, ids.shape[-1])  # [batch, tokens], each sample alike
    if name is None or not torch.equal(ids, ids[:1].expand_as(ids)):
        return None
    rows = ids[0]
    if len(set(rows.tolist())) == 1:
        rows = rows[:1]
    if len(set(rows.tolist())) != len(rows):
        return None
    return f"{len(rows)}, {traced.tensors[name].shape[-1]}", Part(name, rows=rows.long(), lookup=True)


def _emit(builder: Builder, node: Node, text: str, args: list[Any]) -> Op:
    """Emits a Lua expression of {0}, {1}, ..: tensors, parameters and numbers."""
    inputs: list[Op] = []
    tables: dict[str, Weight] = {}
    given: list[str] = []
    for arg in args:
        number = builder.traced.number(arg)
        if number is not None:
            given.append(number_text(number) if number >= 0 else f"({number_text(number)})")
            continue
        if not isinstance(arg, Node):
            raise refuse(node, f"an operand of {op_name(node)} that is no number", "")
        if arg in builder.traced.constants:
            arg = constant(builder, builder.traced.constants[arg], node)
        found = rows_of(builder, arg) if isinstance(arg, Node) else None
        if found is not None and len(builder.traced.follow(arg).users) > 1 and (  # one parameter, read several times
                builder.traced.parameter(builder.traced.follow(arg)) is not None):
            found = None
        if found is not None:
            role = f"operand{len(tables)}"
            given.append(f"nn.parameter({{{role}}}, {{{{ {found[0]} }}}})")
            tables[role] = Weight([found[1]])
            continue
        one = arg if isinstance(arg, Op) else _own_shape(builder, node, arg)
        if one not in inputs:
            inputs.append(one)
        given.append(f"{{{inputs.index(one)}}}")
    for i in range(len(given)):
        text = text.replace(f"{{{i}}}", f"\0{i}\0")
    for i, written in enumerate(given):
        text = text.replace(f"\0{i}\0", written)
    return builder.emit(op_name(node), text, inputs, node, tables=tables)


def unary(builder: Builder, node: Node) -> Op | None:
    """exp, sigmoid, silu and other functions of one number."""
    text = _UNARY.get(node.target)
    if text is not None:
        return _emit(builder, node, text, [node.args[0]])
    if node.target is aten.softplus.default and len(node.args) == 1:
        return _emit(builder, node, "nn.softplus({0})", [node.args[0]])
    if node.target is aten.leaky_relu.default:
        slope = node.args[1] if len(node.args) > 1 else 0.01
        return _emit(builder, node, "nn.leaky_relu({0}, {1})", [node.args[0], slope])
    if node.target is aten.elu.default and len(node.args) < 3:
        return _emit(builder, node, "nn.elu({0}, {1})", [node.args[0], node.args[1] if len(node.args) > 1 else 1.0])
    if node.target in (aten.hardtanh.default, aten.relu6.default):  # the module nn.ReLU6 is a hardtanh, too
        low, high = (0.0, 6.0) if node.target is aten.relu6.default else (*node.args[1:], *(-1.0, 1.0)[len(node.args) - 1:])
        return _emit(builder, node, "nn.minimum(nn.maximum({0}, {1}), {2})", [node.args[0], low, high])
    if node.target is aten.clamp.default:
        low, high = (*node.args[1:], node.kwargs.get("min"), node.kwargs.get("max"), None)[:2]
        if low is not None and high is not None:
            return _emit(builder, node, "nn.minimum(nn.maximum({0}, {1}), {2})", [node.args[0], low, high])
        return _emit(builder, node, "nn.maximum({0}, {1})" if high is None else "nn.minimum({0}, {1})",
                     [node.args[0], low if high is None else high])
    return None


def _is_mask(builder: Builder, node: Node) -> bool:
    """Returns whether a factor is an input of integers, such as a mask of 0 and 1, which the plan reads as numbers."""
    source = builder.traced.source(builder.traced.strip(node))
    while source is not None and source.target in (aten.to.dtype, aten.to.device, aten._to_copy.default, aten.to.dtype_layout):
        before = source.args[0]
        source = builder.traced.source(before) if isinstance(before, Node) else None
    if source not in builder.traced.inputs or source is None or source.meta["val"].is_floating_point():
        return False
    builder.masks.add(source)
    return True


def binary(builder: Builder, node: Node) -> Op | None:
    """+ - * / and powers of tensors, parameters and numbers, with broadcasting."""
    text = _BINARY.get(node.target)
    if text is None:
        return None
    a, b = node.args[:2]
    if node.target is aten.mul.Tensor:
        for x, mask in ((a, b), (b, a)):
            if isinstance(x, Node) and isinstance(mask, Node) and _is_mask(builder, mask):
                return _emit(builder, node, "(({0}) * ({1}))", [x, mask])
    alpha = builder.traced.number(node.kwargs.get("alpha", 1))
    if alpha != 1:
        text = text.replace("{1}", f"({{1}}) * {number_text(alpha or 1)}")
    # In brackets, because the plan writes a value that is used once in the expression of its reader.
    return _emit(builder, node, text if text.startswith("nn.") else f"({text})", [a, b])


def converted(builder: Builder, node: Node) -> Op | None:
    """Integers of the inputs, such as a mask, as numbers."""
    source = node.args[0] if node.args else None
    if node.target not in (aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default, aten.type_as.default) or (
            not isinstance(source, Node) or not node.meta["val"].is_floating_point()
            or not data.depends_on_data(builder, source)):
        return None
    return builder.emit("number", "{0} * 1.0", [data.ids(builder, source, node)], node, shape=shape_of(node))


def where(builder: Builder, node: Node) -> Op | None:
    """torch.where and masked_fill of a comparison or of a constant mask."""
    if node.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        otherwise, condition, then = node.args
    elif node.target in (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf):
        condition, then, otherwise = node.args
    else:
        return None
    mask = builder.traced.constant(condition)
    if isinstance(mask, Tensor) and bool((mask == mask.flatten()[0]).all()):  # one of the two, as lerp has it
        chosen = then if bool(mask.flatten()[0]) else otherwise
        if isinstance(chosen, Node) and shape_of(chosen) == shape_of(node):
            return operand(builder, chosen)
    if isinstance(mask, Tensor):
        return _emit(builder, node, "nn.where({0}, {1}, {2})", [condition, then, otherwise])
    compared = builder.traced.follow(condition) if isinstance(condition, Node) else None
    name = _COMPARISONS.get(op_name(compared)) if compared is not None else None
    if compared is None or name is None:
        return None
    return _emit(builder, node, f"nn.where(nn.{name}({{0}}, {{1}}), {{2}}, {{3}})", [*compared.args[:2], then, otherwise])


def _dims_text(dims: Any) -> str:
    listed = [dims] if isinstance(dims, int) else list(dims)
    return str(listed[0]) if len(listed) == 1 else f"{{{{ {', '.join(str(dim) for dim in listed)} }}}}"


def reduction(builder: Builder, node: Node) -> Op | None:
    """mean, sum, amax and the norm over dims."""
    if is_getitem(node) and node.args[1] == 0 and getattr(node.args[0], "target", None) is aten.max.dim:
        x, dim = node.args[0].args[:2]  # type: ignore[union-attr]
        kept = ", {{ keep = true }}" if len(shape_of(x)) == len(shape_of(node)) else ""  # type: ignore[arg-type]
        return builder.emit("max", f"nn.max({{0}}, {dim}{kept})", [operand(builder, x)], node, shape=shape_of(node))
    function = _REDUCTIONS.get(node.target)
    dims = node.args[1] if len(node.args) > 1 else None
    keep = bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim", False))
    order: float | None = 2
    if node.target is aten.linalg_vector_norm.default:
        order = builder.traced.number(node.args[1]) if len(node.args) > 1 else 2
        dims = node.args[2] if len(node.args) > 2 else None
        keep = bool(node.args[3]) if len(node.args) > 3 else False
        function = "norm" if order is not None and order > 0 else None
    if function is None or dims is None:
        return None
    assert isinstance(node.args[0], Node)
    x = _own_shape(builder, node, node.args[0])
    options = ["keep = true"] if keep else []
    if order != 2:
        options.append(f"order = {'math.huge' if order == float('inf') else number_text(order or 2)}")
    kept = f", {{{{ {', '.join(options)} }}}}" if options else ""
    return builder.emit(function, f"nn.{function}({{0}}, {_dims_text(dims)}{kept})", [x], node)


def variance(builder: Builder, node: Node) -> Op | None:
    """The variance and the standard deviation over dims."""
    if node.target not in (aten.var.dim, aten.std.dim, aten.var.correction, aten.std.correction):
        return None
    given = dict(zip([one.name for one in node.target._schema.arguments], node.args)) | node.kwargs  # type: ignore[union-attr]
    shape, dims = shape_of(node.args[0]), given.get("dim")  # type: ignore[arg-type]
    if dims is None:
        return None
    less = int(given["unbiased"]) if "unbiased" in given else given.get("correction", 1)
    less = builder.traced.number(1 if less is None else less)
    count = math.prod(shape[dim] for dim in ([dims] if isinstance(dims, int) else dims))
    if less is None or count <= less:
        return None
    x = operand(builder, node.args[0])
    keep = ", {{ keep = true }}"
    away = builder.emit("sub", f"({{0}} - nn.mean({{1}}, {_dims_text(dims)}{keep}))", [x, x], node, shape=shape)
    factor = f" * {number_text(count / (count - less))}" if less else ""
    text = f"nn.mean({{0}} ^ 2, {_dims_text(dims)}{keep if given.get('keepdim') else ''}){factor}"
    text = f"nn.sqrt({text})" if op_name(node) == "std" else f"({text})"
    return builder.emit(op_name(node), text, [away], node, shape=shape_of(node))


def along_dim(builder: Builder, node: Node) -> Op | None:
    """softmax, log_softmax and cumsum along a dim."""
    name = {aten.softmax.int: "softmax", aten._softmax.default: "softmax", aten.log_softmax.int: "log_softmax",
            aten._log_softmax.default: "log_softmax", aten.cumsum.default: "cumsum"}.get(node.target)
    if name is None:
        return None
    arg, dim = node.args[:2]
    assert isinstance(arg, Node) and isinstance(dim, int)
    last = name != "cumsum" and dim % len(shape_of(arg)) == len(shape_of(arg)) - 1
    x = _own_shape(builder, node, arg)
    return builder.emit(name, f"nn.{name}({{0}})" if last else f"nn.{name}({{0}}, {dim})", [x], node)


def matmul(builder: Builder, node: Node) -> Op | None:
    """Products of activations, one for each index of the leading dims."""
    if node.target not in (aten.matmul.default, aten.bmm.default):
        return None
    a, b = node.args[:2]
    if not isinstance(a, Node) or not isinstance(b, Node):
        return None
    name = builder.traced.parameter(a)
    if name is not None and len(shape_of(a)) == 2 and len(shape_of(b)) > 2:  # a linear layer of the dim before the last
        count = len(shape_of(b))
        moved = f":transpose({count - 2}, {count - 1})"
        text = f"nn.linear({{layer}}, {{0}}{moved}, {shape_of(a)[0]}, {{{{ bias = false }}}}){moved}"
        return builder.emit("linear", text, [operand(builder, b)], node, weights={".weight": Weight([Part(name, True)])},
                            layer=builder.layer_of(node), shape=shape_of(node), role="")
    if shape_of(a)[:-2] != shape_of(b)[:-2] or len(shape_of(a)) < 3:
        return None
    if builder.traced.parameter(a) is not None or builder.traced.parameter(b) is not None:
        return None
    return builder.emit("matmul", "nn.matmul({0}, {1})", [_own_shape(builder, node, a), _own_shape(builder, node, b)],
                        node)


def einsum(builder: Builder, node: Node) -> Op | None:
    """Products of two tensors with named dims."""
    if node.target is not aten.einsum.default or len(node.args[1]) != 2:  # type: ignore[arg-type]
        return None
    equation = str(node.args[0]).replace(" ", "")
    if not re.fullmatch("[a-zA-Z]+,[a-zA-Z]+->[a-zA-Z]+", equation):
        return None
    return _emit(builder, node, f'nn.einsum("{equation}", {{0}}, {{1}})', list(node.args[1]))  # type: ignore[arg-type]


RULES: list[Callable[[Builder, Node], Op | None]] = [unary, binary, converted, where, reduction, variance, along_dim, matmul, einsum]
