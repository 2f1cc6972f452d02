"""Losses: the mean over the batch of the cross-entropy of next tokens, and of squared differences."""
from __future__ import annotations

import math

import torch
from torch.fx import Node

from ..builder import Builder
from ..ops import Op
from ..trace import MOVEMENT, aten, is_getitem, refuse, shape_of


def _movement(node: Node) -> bool:
    return node.target in MOVEMENT or is_getitem(node) or node.target in (
        aten.constant_pad_nd.default, aten.pad.default, aten.to.dtype, aten.to.dtype_layout)


def _targets(builder: Builder, node: Node) -> tuple[Node, list[int]]:
    """Returns the input that targets come from, and for each target the position of its element, -1 if ignored."""
    traced = builder.traced
    _, leaves = traced.cone(node, _movement)
    if len(leaves) != 1 or next(iter(leaves)) not in traced.inputs:
        raise refuse(node, "targets that are computed", "pass the targets as an argument of the module")
    source = next(iter(leaves))
    shape = shape_of(source)
    # Positions are offset so that the padding value of ignored targets differs from each of them.
    index = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape) + 1e6
    found = traced.evaluate(node, {source: index}).flatten()
    return source, [int(one) - 1_000_000 if one >= 1e6 else -1 for one in found.tolist()]


def cross_entropy(builder: Builder, node: Node) -> Op | None:
    """F.cross_entropy(logits, targets), with targets given or shifted from the tokens as transformers does."""
    if node.target is not aten.cross_entropy_loss.default:
        return None
    traced = builder.traced
    names = ["self", "target", "weight", "reduction", "ignore_index", "label_smoothing"]
    defaults: list[object] = [None, None, None, 1, -100, 0.0]
    given = dict(zip(names, [*node.args, *defaults[len(node.args):]]))
    given.update(node.kwargs)
    if given["weight"] is not None:
        raise refuse(node, "weights of classes", "a plan's cross-entropy counts all targets equally")
    if given["reduction"] != 1:
        raise refuse(node, "a sum instead of a mean", 'use reduction="mean"; scale the learning rate instead')
    if given["label_smoothing"] != 0.0:
        raise refuse(node, "label smoothing", "prun has none yet; use label_smoothing=0")
    logits, targets = node.args[0], node.args[1]
    assert isinstance(logits, Node) and isinstance(targets, Node)
    source, positions = _targets(builder, targets)
    chosen = traced.selection(logits)
    if chosen is None:
        raise refuse(node, "logits that are put together from several tensors")
    origin, index = chosen
    if index.dim() > 2:  # classes are dim 1
        index = index.movedim(1, -1)
    vocab = shape_of(origin)[-1]
    rows = index.reshape(-1, vocab)[:, 0] // vocab
    if not torch.equal(index.reshape(-1, vocab), rows[:, None] * vocab + torch.arange(vocab)):
        raise refuse(node, "logits whose last dim is not the vocabulary")
    pairs = [(int(row), at) for row, at in zip(rows.tolist(), positions) if at >= 0]
    shape = shape_of(source)
    if len(shape) == 1 and pairs == [(i, i) for i in range(shape[0])]:
        builder.inputs_used["y"] = source
        return builder.emit("loss", "prun.losses.cross_entropy({0}, batch.y)", [builder.value(origin)], node,
                            shape=(1,))
    if len(shape) != 2:
        raise refuse(node, f"targets of shape {list(shape)}", "targets are token ids [batch, tokens]")
    count, tokens = shape
    if pairs == [(i, i) for i in range(count * tokens)]:
        builder.context = tokens
        builder.inputs_used["targets"] = source
    elif pairs == [(b * tokens + t, b * tokens + t + 1) for b in range(count) for t in range(tokens - 1)]:
        builder.context = tokens - 1
        builder.inputs_used["shifted"] = source
    else:
        raise refuse(node, "targets that are neither one for each token nor the tokens shifted by one",
                     "pass targets [batch, tokens] with the next token at each position")
    builder.vocab = vocab
    x = builder.value(origin)
    return builder.emit("loss", "prun.losses.cross_entropy({0}, batch.targets)", [x], node, shape=(1,))


def mean_squared_error(builder: Builder, node: Node) -> Op | None:
    """F.mse_loss(y, target) with the target given as an argument."""
    if node.target is not aten.mse_loss.default:
        return None
    if (node.args[2] if len(node.args) > 2 else node.kwargs.get("reduction", 1)) != 1:
        raise refuse(node, "a sum instead of a mean", 'use reduction="mean"')
    a, b = node.args[:2]
    assert isinstance(a, Node) and isinstance(b, Node)
    x, y = builder.traced.follow(a), builder.traced.follow(b)
    if y not in builder.traced.inputs:
        x, y = y, x
    if y not in builder.traced.inputs:
        raise refuse(node, "a target that is computed", "pass the target as an argument of the module")
    builder.inputs_used["y"] = y
    return builder.emit("loss", "prun.losses.mse({0}, batch.y)", [builder.value(x)], node, shape=(1,))
