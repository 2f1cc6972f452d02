"""Linear layers in any of PyTorch's forms, and dropout."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..builder import Builder, number_text, whole
from ..ops import Op, Part, Weight
from ..trace import Traced, aten, is_getitem, refuse, shape_of

_TRANSPOSES = {aten.t.default, aten.transpose.int, aten.numpy_T.default, aten.permute.default}


@dataclass
class Layer:
    """A traced linear layer: input, parameters, and whether the weight is [out, in]. `rows`: the outputs of the parameters
    that are the layer's; None = all.
    """

    x: Node
    weight: str
    bias: str | None
    transpose: bool
    out: int
    rows: torch.Tensor | None = None

    def part(self, name: str, transpose: bool, columns: torch.Tensor | None) -> Part:
        """Returns the chosen outputs of a parameter of the layer."""
        if self.rows is not None:
            columns = self.rows if columns is None else self.rows[columns]
        return Part(name, transpose, columns)


def _rows_of_parameter(builder: Builder, arg: Any, width: int) -> tuple[str, torch.Tensor | None]:
    """Returns the parameter that a weight [out, width] or a bias is, or is rows of, and these rows."""
    traced = builder.traced
    source = traced.source(arg) if isinstance(arg, Node) and arg not in traced.parameters else None
    if source not in traced.parameters or arg in traced.constants:
        return builder.part(arg).parameter, None
    index = traced.selection(arg)[1]  # type: ignore[index]
    index = index.reshape(-1, width)
    rows = index[:, 0] // width
    if not torch.equal(index, rows[:, None] * width + torch.arange(width)):
        return builder.part(arg).parameter, None  # refuses it
    return traced.parameters[source], rows  # type: ignore[index]


def read_layer(builder: Builder, node: Node) -> Layer | None:
    """Returns the linear layer that a node computes."""
    traced = builder.traced
    weight: Any
    if node.target is aten.linear.default:
        x, weight = node.args[:2]
        bias = node.args[2] if len(node.args) > 2 else None
        transpose = True
    elif node.target in (aten.add.Tensor, aten.add_.Tensor) and not node.kwargs:
        return _with_bias(builder, node)
    elif node.target in (aten.addmm.default, aten.matmul.default, aten.mm.default):
        bias, x, weight = node.args if node.target is aten.addmm.default else (None, *node.args)
        transpose = False
        if node.kwargs:
            raise refuse(node, "addmm with factors", "beta and alpha are 1")
        if isinstance(weight, Node) and weight.target in _TRANSPOSES:
            weight, transpose = weight.args[0], True
        if not isinstance(weight, Node) or weight not in traced.parameters:
            return None
    else:
        return None
    assert isinstance(x, Node)
    out = shape_of(node)[-1]
    if not transpose:
        return Layer(x, builder.part(weight).parameter, None if bias is None else builder.part(bias).parameter, False, out)
    name, rows = _rows_of_parameter(builder, weight, shape_of(x)[-1])
    if bias is None:
        return Layer(x, name, None, True, out, rows)
    biased, same = _rows_of_parameter(builder, bias, 1)
    if (rows is None) != (same is None) or rows is not None and same is not None and not torch.equal(rows, same):
        raise refuse(node, "a weight and a bias that are different rows of their parameters", "give the layer parameters of its own")
    return Layer(x, name, biased, True, out, rows)


def _with_bias(builder: Builder, node: Node) -> Layer | None:
    """Returns the layer of x @ w + b, whose bias is a parameter of its own."""
    for below, bias in (node.args[:2], node.args[1::-1]):
        name = builder.traced.parameter(bias)
        if name is None or not isinstance(below, Node):
            continue
        layer = read_layer(builder, builder.traced.follow(below))
        if layer is not None and layer.bias is None and shape_of(bias) == (layer.out,):
            return None if layer.rows is not None else Layer(layer.x, layer.weight, name, layer.transpose, layer.out)
    return None


def emit_layer(builder: Builder, node: Node, layers: list[tuple[Layer, torch.Tensor | None]], blocks: list[int] | None = None,
               kind: str = "linear") -> Op:
    """Adds a linear layer whose outputs are the chosen columns of one or several layers of the same input."""
    x = builder.value(layers[0][0].x)
    weights = {".weight": Weight([one.part(one.weight, one.transpose, columns) for one, columns in layers])}
    sizes = [one.out if columns is None else len(columns) for one, columns in layers]
    biased = [one.bias is not None for one, _ in layers]
    if any(biased) and not all(biased):
        raise refuse(node, "queries, keys and values of which only some have a bias",
                     "give all of them a bias, or none")
    if all(biased):
        weights[".bias"] = Weight([one.part(one.bias or "", False, columns) for one, columns in layers])
    options = [] if all(biased) else ["bias = false"]
    if blocks:
        options.append(f"blocks = {{{{ {', '.join(map(str, blocks))} }}}}")
    tail = f", {{{{ {', '.join(options)} }}}}" if options else ""
    out = sum(sizes)
    return builder.emit(kind, f"nn.linear({{layer}}, {{0}}, {out}{tail})", [x], node, weights=weights,
                        layer=builder.layer_of(node), shape=(*x.shape[:-1], out))


def linear(builder: Builder, node: Node) -> Op | None:
    """nn.Linear, F.linear, x @ w, addmm; or some outputs of one, such as the gate of a fused gate and up projection."""
    layer = read_layer(builder, node)
    columns: torch.Tensor | None = None
    if layer is None:
        origin = builder.traced.source(node)
        layer = None if origin is None or origin is node else read_layer(builder, origin)
        chosen = None if layer is None else builder.traced.selection(node)
        if origin is None or layer is None or chosen is None:
            return None
        index = chosen[1]
        rows = index.reshape(-1, index.shape[-1])
        columns = rows[0] % layer.out
        if not torch.equal(rows, torch.arange(rows.shape[0])[:, None] * layer.out + columns):
            return None
        node = origin
    builder.value(layer.x)  # makes the token embedding, which may own the weight
    known = builder.owner_of.get(layer.weight)
    if known is not None and columns is None and layer.rows is None and known[0].kind not in ("linear", "qkv"):
        return _tied(builder, node, layer, *known)
    return emit_layer(builder, node, [(layer, columns)])


def _tied(builder: Builder, node: Node, layer: Layer, owner: Op, role: str) -> Op:
    if owner.kind != "embedding" or role != "token" or not layer.transpose:
        raise refuse(node, f"the weight {layer.weight} is used twice",
                     "a plan ties the token embedding with the logits' layer; give other layers weights of their own")
    if any(op.again is owner and op.kind == "linear" for op in builder.ops):
        raise refuse(node, f"the weight {layer.weight} is used three times",
                     "a plan ties the token embedding with the logits' layer only")
    out, width = builder.traced.tensors[layer.weight].shape
    table = f'nn.parameter({{token}}, {{{{ {out}, {width} }}}}, {{{{ "normal", 0.02 }}}})'
    bias = "" if layer.bias is None else ", bias = true"
    return builder.emit("linear", f"nn.linear({{layer}}, {{0}}, {out}, {{{{ weight = {table}{bias} }}}})",
                        [builder.value(layer.x)], node, layer=builder.layer_of(node), again=owner,
                        weights={} if layer.bias is None else {".bias": whole(layer.bias)})


def read_dropout(traced: Traced, node: Node) -> tuple[float, Node] | None:
    """Returns the share and the input of dropout."""
    if is_getitem(node) and node.args[1] == 0 and isinstance(node.args[0], Node):
        node = node.args[0]
    if node.target not in (aten.dropout.default, aten.native_dropout.default) or traced.same(node):
        return None
    share = node.args[1]
    assert isinstance(share, float) and isinstance(node.args[0], Node)
    return share, node.args[0]


def drop_path(builder: Builder, node: Node) -> Op | None:
    """Whole samples of a tensor that are zero while training (stochastic depth). Masks differ from PyTorch's."""
    found = builder.traced.drop_paths.get(node)
    if found is None:
        return None
    x = builder.value(found[0])
    first = "{0}" + "".join(f":slice({dim}, 0, 1)" for dim in range(1, len(x.shape)))
    one = builder.emit("detach", f"nn.detach({first})", [x], node, shape=(x.shape[0], *[1] * (len(x.shape) - 1)))
    text = f"{{0}} * nn.dropout(nn.equal({{1}}, {{1}}), {number_text(float(f'{found[1]:.12g}'))})"
    return builder.emit("mul", text, [x, one], node, shape=x.shape)


def dropout(builder: Builder, node: Node) -> Op | None:
    """nn.Dropout while training. Masks differ from PyTorch's."""
    found = read_dropout(builder.traced, node)
    if found is None:
        return None
    return builder.emit("dropout", f"nn.dropout({{0}}, {number_text(found[0])})", [builder.value(found[1])], node)
