"""Losses that compare each sample of a batch with all others, as those of CLIP and SigLIP. One rank computes them, in one
microbatch of as many samples as the example has: prun refuses meshes that divide the samples.
"""
from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, number_text
from ..ops import Op, Weight
from ..trace import aten, shape_of
from .views import list_text, operand, samples_of

_TRANSPOSES = {aten.t.default, aten.numpy_T.default, aten.transpose.int, aten.mT.default}


def _transposed(node: Node) -> Node | None:
    """Returns the matrix that a node transposes."""
    source = node.args[0] if node.target in _TRANSPOSES else None
    return source if isinstance(source, Node) and len(shape_of(source)) == 2 else None


def products(builder: Builder, node: Node) -> Op | None:
    """a @ b.T of rows of samples: a number for each pair of samples."""
    if node.target not in (aten.matmul.default, aten.mm.default) or len(shape_of(node)) != 2:
        return None
    a, b = node.args[:2]
    other = _transposed(builder.traced.follow(b)) if isinstance(b, Node) else None
    count = samples_of(builder)
    if not isinstance(a, Node) or other is None or shape_of(node) != (count, count):
        return None
    builder.notes += [] if NOTE in builder.notes else [NOTE]
    return builder.emit("matmul", "nn.matmul({0}, {1}, {{ transpose_b = true }})", [operand(builder, a), operand(builder, other)],
                        node, shape=(count, count))


NOTE = "The loss compares all samples of a batch: train on one rank, with micro = 1 and the example's number of samples."


def _of_pairs(builder: Builder, node: Node) -> Op | None:
    """The mean cross-entropy of the rows, or the columns, of numbers of pairs, each with its own place as the target."""
    if node.target is not aten.cross_entropy_loss.default or len(node.args) > 2 or node.kwargs:
        return None
    logits, targets = node.args[:2]
    count, given = samples_of(builder), builder.traced.constant(targets)
    if not isinstance(logits, Node) or shape_of(logits) != (count, count) or not isinstance(given, Tensor) or (
            not torch.equal(given, torch.arange(count))):
        return None
    logits = builder.traced.follow(logits)
    source = _transposed(logits)
    x = operand(builder, logits if source is None else source)
    dim = 1 if source is None else 0
    own = f"nn.parameter({{own}}, {list_text((count, count))})"
    text = f"prun.losses.mean(nn.sum(nn.log_softmax({{0}}, {dim}) * {own}, {dim}) * -1)"
    return builder.emit("loss", text, [x], node, shape=(1,), tables={"own": Weight([], torch.eye(count).double())})


def loss(builder: Builder, node: Node) -> Op | None:
    """A contrastive loss, a sum of such losses, or one divided by a number."""
    node = builder.traced.follow(node)
    if node.target in (aten.div.Tensor, aten.mul.Tensor):
        factor = builder.traced.number(node.args[1])
        inner = loss(builder, node.args[0]) if factor and isinstance(node.args[0], Node) else None
        if inner is None or not factor:
            return None
        value = 1 / factor if node.target is aten.div.Tensor else factor
        return builder.emit("loss", f"{{0}} * {number_text(value)}", [inner], node, shape=(1,))
    if node.target is aten.add.Tensor and not node.kwargs and _sums_pairs(builder, node):
        terms = [loss(builder, one) for one in node.args[:2] if isinstance(one, Node)]
        return builder.emit("loss", "({0} + {1})", [one for one in terms if one is not None], node, shape=(1,))
    return _of_pairs(builder, node)


def _sums_pairs(builder: Builder, node: Node) -> bool:
    """Returns whether both terms are cross-entropies of pairs of samples."""
    count = samples_of(builder)
    return all(isinstance(one, Node) and one.target is aten.cross_entropy_loss.default
               and isinstance(one.args[0], Node) and shape_of(one.args[0]) == (count, count)
               and isinstance(builder.traced.constant(one.args[1]), Tensor) for one in node.args[:2])
