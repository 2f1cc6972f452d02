"""Biases of attention scores: numbers such as ALiBi's, and relative positions, which a table has for each distance."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, whole
from ..ops import Op, Weight
from ..trace import aten, refuse, shape_of
from .views import constant, list_text, operand


def emit(builder: Builder, added: Node | Tensor, reader: Node) -> Op:
    """Returns a bias [heads or 1, queries or 1, keys]."""
    if isinstance(added, Tensor):
        queries, keys = (_tokens(builder, size) for size in added.shape[1:])
        return constant(builder, added[:, :queries, :keys], reader)
    node = added
    while builder.traced.same(node) or _repeats(node):
        node = builder.traced.follow(node) if builder.traced.same(node) else node.args[0]  # type: ignore[assignment]
    if ("bias", node) not in builder.made:
        builder.made["bias", node] = _without_samples(builder, node)
    return builder.made["bias", node]


def _tokens(builder: Builder, size: int) -> int:
    """Returns the tokens of the plan for those of the module, which may have one more."""
    return builder.context if "shifted" in builder.inputs_used and size == builder.context + 1 else size


def _repeats(node: Node) -> bool:
    """Returns whether a node repeats a tensor for each sample, or gives it a dim for samples."""
    if node.target is aten.unsqueeze.default:
        return node.args[1] == 0 and len(shape_of(node)) == 4
    return node.target is aten.expand.default and shape_of(node)[1:] == _later(node)


def _without_samples(builder: Builder, node: Node) -> Op:
    x = operand(builder, node)
    if len(x.shape) == 4 and x.shape[0] == 1:
        x = builder.emit("reshape", "{0}:squeeze(0)", [x], node, shape=x.shape[1:])
    if len(x.shape) != 3:
        raise refuse(node, f"a bias of attention scores {list(x.shape)}", "a bias is [heads, queries, keys]")
    return x


def _later(node: Node) -> tuple[int, ...]:
    source = node.args[0]
    assert isinstance(source, Node)
    return shape_of(source)[-len(shape_of(node)) + 1:]


def by_distance(builder: Builder, node: Node) -> Op | None:
    """The rows of a table at constant ids, which depend on the distance of a query and a key: [queries, keys, heads]."""
    if node.target is not aten.embedding.default:
        return None
    ids, name = builder.traced.constant(node.args[1]), builder.traced.parameter(node.args[0])
    if not isinstance(ids, Tensor) or ids.dim() != 2 or name is None or shape_of(node)[:1] != ids.shape[:1]:
        return None
    queries, keys = (_tokens(builder, size) for size in ids.shape)
    ids = ids[:queries, :keys]
    at = torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1
    rows = torch.zeros(queries + keys - 1, dtype=torch.long)
    rows[at] = ids.long()
    if not torch.equal(rows[at], ids.long()):
        return None
    if name in builder.owner_of:
        raise refuse(node, f"the parameter {name} outside a layer that owns it", "")
    count, heads = builder.traced.tensors[name].shape
    buckets = torch.nn.functional.one_hot(rows, count).double()  # of each distance
    text = (f"nn.relative(nn.matmul(nn.parameter({{buckets}}, {list_text(buckets.shape)}), "
            f"nn.parameter({{relative}}, {list_text((count, heads))})), {queries}, {keys})")
    return builder.emit("relative", text, [], node, shape=(queries, keys, heads),
                        tables={"buckets": Weight([], buckets), "relative": whole(name)})
