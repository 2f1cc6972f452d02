"""Moves transposes of batch and tokens behind the linear layers that read them.

nn.MultiheadAttention computes its linear layers on [tokens, batch, width]. A linear layer works on each row by itself,
so linear(rows in another order) = linear(rows) in that order. After this, only views are left between these layers and
the attention, and the rows of all layers are in the same order.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .trace import Traced, aten, shape_of

_TRANSPOSES = {aten.transpose.int, aten.permute.default, aten.t.default, aten.movedim.int}
_ATTENTION = {aten.scaled_dot_product_attention.default, aten.matmul.default, aten.bmm.default}


def _moved(traced: Traced, x: Node) -> bool:
    """Returns whether a tensor is a view of another with a transpose in between."""
    while isinstance(x, Node) and x not in traced.constants and (
            x.target in _TRANSPOSES or traced.same(x) or x.target in (aten.view.default, aten.reshape.default)):
        if x.target in _TRANSPOSES:
            return True
        x = x.args[0]  # type: ignore[assignment]
    return False


def _rows(index: Tensor, width: int, canonical: Tensor) -> Tensor | None:
    """Returns which row of `canonical` each row of `index` is; None if they are not rows of it in another order."""
    index = index.reshape(-1, width)
    place = torch.full((index.numel(),), -1)
    place[canonical[:, 0]] = torch.arange(len(canonical))
    rows = place[index[:, 0]]
    if bool((rows < 0).any()) or not torch.equal(index, canonical[rows]) or len(rows.unique()) != len(canonical):
        return None
    return None if torch.equal(rows, torch.arange(len(rows))) else rows


class _Graph:
    """A program whose linear layers are rewritten. New nodes keep the line and the module of those that they replace."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.module: Any = traced.program.graph_module
        self.count = 0

    def call(self, old: Node, shape: tuple[int, ...], target: Any, *args: Any) -> Node:
        node: Node = self.module.graph.call_function(target, args)
        node.meta.update(old.meta)
        node.meta["val"] = old.meta["val"].new_empty(shape)
        return node

    def take(self, old: Node, source: Node, index: Tensor) -> Node:
        """Returns the elements of `source` at flat indices."""
        name = f"order_{self.count}"
        self.count += 1
        self.module.register_buffer(name, index)
        order = self.module.graph.get_attr(name)
        order.meta["val"] = self.traced.constants[order] = index
        return self.call(old, tuple(index.shape), aten.take.default, source, order)

    def keeps_samples(self, rows: Tensor) -> bool:
        """Returns whether each row remains in its sample, so that the transpose can be a view of the plan."""
        first = next(iter(self.traced.inputs), None)
        samples = shape_of(first)[:1] if first is not None else ()
        if not samples or len(rows) % samples[0]:
            return False
        own = len(rows) // samples[0]
        return bool(torch.equal(rows // own, torch.arange(len(rows)) // own))

    def rewrite(self, node: Node, source: Node, index: Tensor) -> None:
        """Rewrites linear(source[index]) if the index selects all rows in another order."""
        width, shape = index.shape[-1], shape_of(source)
        count = index.numel() // width
        if shape[-1] == width:
            canonical = torch.arange(index.numel()).reshape(count, width)
            before: tuple[int, ...] = shape
        elif source.target in _ATTENTION and len(shape) in (3, 4) and count % shape[-2] == 0:
            tokens, size = shape[-2:]
            heads = torch.arange(index.numel()).reshape(count // tokens, -1, tokens, size)
            canonical = heads.transpose(1, 2).reshape(count, width)
            before = (count // tokens, tokens, width)
        else:
            return
        rows = _rows(index, width, canonical) if len(canonical) * width == index.numel() else None
        if rows is None or self.keeps_samples(rows):
            return
        with self.module.graph.inserting_before(node):
            if shape[-1] != width:
                source = self.take(node, source, canonical.reshape(before))
            out = shape_of(node)[-1]
            linear = self.call(node, (*before[:-1], out), node.target, source, *node.args[1:])
            order = (rows[:, None] * out + torch.arange(out)).reshape(shape_of(node))
            node.replace_all_uses_with(self.take(node, linear, order))
        self.module.graph.erase_node(node)


def in_order(traced: Traced, module: torch.nn.Module) -> Traced:
    """Returns the program with the rows of all linear layers in the order of the first one's."""
    graph = _Graph(traced)
    for node in traced.nodes:
        if node.target is aten.linear.default and isinstance(node.args[0], Node) and _moved(traced, node.args[0]):
            source = traced.source(node.args[0])
            width = shape_of(node.args[0])[-1]
            plausible = source is not None and (source.target in _ATTENTION or shape_of(source)[-1] == width)
            chosen = traced.selection(node.args[0]) if plausible else None
            if chosen is not None:
                graph.rewrite(node, *chosen)
    return Traced(traced.program, module) if graph.count else traced
