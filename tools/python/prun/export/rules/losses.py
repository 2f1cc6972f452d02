"""Losses: the mean over the batch of the cross-entropy of next tokens, and of squared differences."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ..builder import Builder, number_text
from ..errors import ExportError
from ..ops import Op
from ..trace import MOVEMENT, RESHAPES, aten, is_getitem, op_name, refuse, shape_of
from . import contrastive, data, experts, shuffles
from .views import list_text, operand, reshaped, samples_of

_LIKELIHOODS = (aten.nll_loss_nd.default, aten.nll_loss.default)


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


def _rows_of(builder: Builder, node: Node, logits: Node) -> tuple[Node, list[int]]:
    """Returns the logits [.., vocab] that a view is of, and the row of each target; a view [batch, classes, ..] of
    something else is returned itself.
    """
    origin = builder.traced.strip(logits)
    vocab = shape_of(origin)[-1]
    count = math.prod(shape_of(origin)[:-1])
    if builder.traced.source(origin) is origin and len(shape_of(logits)) == 2:
        return origin, list(range(count))
    chosen = builder.traced.selection(logits)
    if chosen is None and data.is_pick(builder, origin):
        return origin, list(range(count))
    if chosen is None and len(shape_of(logits)) > 2:
        return builder.traced.follow(logits), list(range(math.prod(shape_of(logits)) // shape_of(logits)[1]))
    if chosen is None:
        raise refuse(node, "logits that are put together from several tensors",
                     "a plan's logits are one linear layer's")
    origin, index = chosen
    if index.dim() > 2:  # classes are dim 1
        index = index.movedim(1, -1)
    vocab = shape_of(origin)[-1]
    index = index.reshape(-1, index.shape[-1])
    rows = index[:, 0] // vocab
    if not torch.equal(index, rows[:, None] * vocab + torch.arange(vocab)):
        if len(shape_of(logits)) > 2:
            return builder.traced.follow(logits), list(range(len(rows)))
        raise refuse(node, "logits whose last dim is not the vocabulary", "logits are [.., vocab], all of them")
    return origin, rows.tolist()


def cross_entropy(builder: Builder, node: Node) -> Op | None:
    """F.cross_entropy(logits, targets), or nll_loss of log_softmax, with targets given or shifted from the tokens."""
    names = ["self", "target", "weight", "reduction", "ignore_index", "label_smoothing"]
    defaults: list[object] = [None, None, None, 1, -100, 0.0]
    if node.target not in (aten.cross_entropy_loss.default, *_LIKELIHOODS):
        return None
    given = dict(zip(names, [*node.args, *defaults[len(node.args):]]))
    given.update(node.kwargs)
    if given["weight"] is not None:
        raise refuse(node, "weights of classes", "a plan's cross-entropy has weights of targets, not of classes")
    if given["reduction"] != 1:
        raise _not_mean(node, given["reduction"])
    logits, targets = node.args[0], node.args[1]
    assert isinstance(logits, Node) and isinstance(targets, Node)
    if targets.meta["val"].is_floating_point():
        raise refuse(node, "targets that are probabilities", "pass the class's number for each target")
    origin, rows = _rows_of(builder, node, logits)
    first = len(shape_of(logits)) > 2 and origin is builder.traced.follow(logits)  # classes are dim 1
    if origin.target in (aten.log_softmax.int, aten._log_softmax.default) and isinstance(origin.args[0], Node) and (
            origin.args[1] == 1 if first else origin.args[1] in (-1, len(shape_of(origin)) - 1)):
        origin = origin.args[0] if first else builder.traced.strip(origin.args[0])  # of log_softmax it is the same
    elif node.target in _LIKELIHOODS:
        raise refuse(node, "nll_loss of something else than log_softmax over the last dim",
                     "use F.cross_entropy(logits, targets)")
    if first:
        return _of_places(builder, node, origin, targets, given["ignore_index"], given["label_smoothing"])
    return _cross_entropy(builder, node, origin, rows, targets, given["ignore_index"], given["label_smoothing"])


def _options(ignored: int, smoothing: float, tokens: bool) -> str:
    """Returns the options of prun.losses.cross_entropy as Lua. `tokens`: targets are tokens, which count from 0."""
    options = [f"ignore = {ignored}"] if ignored >= 0 or not tokens and ignored != -100 else []
    if smoothing != 0:
        options.append(f"label_smoothing = {smoothing!r}")
    return f", {{{{ {', '.join(options)} }}}}" if options else ""  # braces of Op.text are doubled


def _of_places(builder: Builder, node: Node, logits: Node, targets: Node, ignored: int, smoothing: float) -> Op:
    """Returns the loss of logits [batch, classes, ..], such as those of an image, with a target for each place."""
    source, positions = _targets(builder, targets)
    if builder.named or positions != list(range(math.prod(shape_of(source)))):
        raise refuse(node, "classes of places that are not all of an input", "pass targets [batch, ..] as an argument")
    builder.ignored[source] = ignored
    targets_name = builder.place(source, "y")
    x = operand(builder, logits)
    count = len(x.shape)
    x = builder.emit("permute", f"{{0}}:permute {list_text([0, *range(2, count), 1])}", [x], node,
                     shape=(x.shape[0], *x.shape[2:], x.shape[1]))
    options = _options(ignored, smoothing, tokens=False)
    return builder.emit("loss", f"prun.losses.cross_entropy({{0}}, batch.{targets_name}{options})", [x], node, shape=(1,))


def _next_tokens(count: int, tokens: int) -> list[tuple[int, int]]:
    """Returns the row of logits and the target of each token but the last of each sample."""
    return [(b * tokens + t, b * tokens + t + 1) for b in range(count) for t in range(tokens - 1)]


def _cross_entropy(builder: Builder, node: Node, origin: Node, rows: list[int], targets: Node, ignored: int,
                   smoothing: float) -> Op:
    source, positions = _targets(builder, targets)
    vocab = shape_of(origin)[-1]
    pairs = [(int(row), at) for row, at in zip(rows, positions) if at >= 0]
    shape = shape_of(source)
    builder.ignored[source] = ignored
    if builder.named and pairs == [(i, i) for i in range(math.prod(shape))]:
        batch, options = builder.named_input(source), _options(ignored, smoothing, tokens=False)
        return builder.emit("loss", f"prun.losses.cross_entropy({{0}}, {batch}{options})", [builder.value(origin)],
                            node, shape=(1,))
    if len(shape) == 1 and pairs == [(i, i) for i in range(shape[0])]:
        name, options = builder.place(source, "y"), _options(ignored, smoothing, tokens=False)
        return builder.emit("loss", f"prun.losses.cross_entropy({{0}}, batch.{name}{options})",
                            [builder.value(origin)], node, shape=(1,))
    if len(shape) == 1 and [at for _, at in pairs] == list(range(shape[0])):  # of a row of each sample, such as the first
        name, options = builder.place(source, "y"), _options(ignored, smoothing, tokens=False)
        return builder.emit("loss", f"prun.losses.cross_entropy({{0}}, batch.{name}{options})",
                            [operand(builder, node.args[0])], node, shape=(1,))
    if len(shape) != 2:
        raise refuse(node, f"targets of shape {list(shape)}", "targets are token ids [batch, tokens]")
    count, tokens = shape
    if builder.named and "targets" not in builder.inputs_used and pairs == _next_tokens(count, tokens):
        builder.inputs_used["targets"] = source
        builder.shifted = True
        builder.notes.append(f"targets: at each token the next one of {builder.traced.inputs[source]}, at the last one -100.")
        text = f"prun.losses.cross_entropy({{0}}, batch.targets{_options(ignored, smoothing, tokens=False)})"
        return builder.emit("loss", text, [builder.value(origin)], node, shape=(1,))
    if pairs == [(i, i) for i in range(count * tokens)] and not builder.named:
        builder.context = tokens
        builder.inputs_used["targets"] = source
    elif pairs == _next_tokens(count, tokens) and not builder.named:
        builder.context = tokens if builder.whole else tokens - 1
        builder.inputs_used["shifted"] = source
    elif pairs == [(b * (tokens - 1) + t, b * tokens + t + 1) for b in range(count) for t in range(tokens - 1)] and (
            not builder.named):
        builder.context = tokens - 1
        builder.inputs_used["shifted"] = source
        builder.cut.add("targets")
    elif sorted(pairs) != pairs and sorted(row for row, _ in pairs) == list(range(count * tokens)):
        raise refuse(node, "logits of the tokens in another order than the targets",
                     "keep [batch, tokens, width] (batch_first=True) and targets [batch, tokens]")
    else:
        raise refuse(node, "targets that are neither one for each token nor the tokens shifted by one",
                     "pass targets [batch, tokens] with the next token at each position")
    builder.vocab = vocab
    x = builder.value(origin)
    options = _options(ignored, smoothing, tokens=True)
    return builder.emit("loss", f"prun.losses.cross_entropy({{0}}, batch.targets{options})", [x], node, shape=(1,))


def _squares(node: Node) -> tuple[Any, Any] | None:
    """Returns a and b if the node is (a - b) ** 2."""
    inner: Any = None
    if node.target is aten.pow.Tensor_Scalar and node.args[1] == 2 or node.target is aten.square.default:
        inner = node.args[0]
    elif node.target is aten.mul.Tensor and node.args[0] is node.args[1]:
        inner = node.args[0]
    if not isinstance(inner, Node) or inner.target is not aten.sub.Tensor or inner.kwargs:
        return None
    return inner.args[0], inner.args[1]


def _not_mean(node: Node, reduction: object) -> ExportError:
    return refuse(node, "losses that are not reduced" if reduction == 0 else "a sum instead of a mean",
                  'use reduction="mean"; scale the learning rate instead')


def mean_squared_error(builder: Builder, node: Node) -> Op | None:
    """F.mse_loss(y, target), or the mean of (y - target) ** 2, with the target given as an argument."""
    traced = builder.traced
    pair: tuple[Any, Any] | None = None
    if node.target is aten.mse_loss.default:
        pair = node.args[0], node.args[1]
        reduction = node.args[2] if len(node.args) > 2 else node.kwargs.get("reduction", 1)
        if reduction != 1:
            raise _not_mean(node, reduction)
    elif node.target is aten.mean.default and isinstance(node.args[0], Node):
        pair = _squares(traced.follow(node.args[0]))
    if pair is None:
        return None
    a, b = (_before_broadcast(one) for one in pair)
    if shape_of(a) != shape_of(b):
        raise refuse(node, f"a result and a target of shapes {list(shape_of(a))} and {list(shape_of(b))}, which broadcast",
                     "give the target the result's shape, such as y[:, None]")
    found = [(x, y) for x, y in ((a, b), (b, a)) if _is_input(builder, y)]
    if not found:  # a mean of squares like any other
        return None
    x, y = found[0]
    source = traced.selection(y)[0]  # type: ignore[index]
    # A target of one number a sample is a column in a plan.
    wanted = shape_of(source)[1:] or (1,)
    x = traced.follow(x)
    fitting = (wanted, shape_of(source)[1:])
    while x.target in RESHAPES and shape_of(x)[1:] not in fitting and isinstance(x.args[0], Node):
        x = traced.follow(x.args[0])
    if shape_of(x)[1:] not in fitting:
        raise refuse(node, f"a result of shape {list(shape_of(x))} for a target of shape {list(shape_of(source))}",
                     "pass the target in the result's shape")
    name = builder.place(source, "y")
    result = reshaped(builder, builder.value(x), (shape_of(source)[0], *wanted), node)
    return builder.emit("loss", f"prun.losses.mse({{0}}, batch.{name})", [result], node, shape=(1,))


def _before_broadcast(node: Any) -> Node:
    """Returns the tensor that broadcast_tensors was given, which mse_loss begins with."""
    if isinstance(node, Node) and is_getitem(node):
        together, which = node.args
        if isinstance(together, Node) and together.target is aten.broadcast_tensors.default:
            node = together.args[0][which]  # type: ignore[index, call-overload]
    assert isinstance(node, Node)
    return node


def _is_input(builder: Builder, node: Node) -> bool:
    """Returns whether a node is an input, reshaped at most."""
    if builder.traced.source(node) not in builder.traced.inputs:
        return False
    source, index = builder.traced.selection(node)  # type: ignore[misc]
    return bool(torch.equal(index.flatten(), torch.arange(math.prod(shape_of(source)))))


def _without_balance(builder: Builder, node: Node) -> Node:
    """Returns the loss to which a balancing loss of mixtures of experts is added; the mixtures' layers add that one."""
    if node.target not in (aten.add.Tensor, aten.add_.Tensor) or node.kwargs:
        return node
    for main, extra in (node.args[:2], node.args[1::-1]):
        found = experts.balance(builder, extra) if isinstance(extra, Node) and isinstance(main, Node) else None
        if found is not None and isinstance(main, Node):
            builder.balance, builder.balanced = found
            return builder.traced.follow(main)
    return node


def loss(builder: Builder, node: Node) -> Op:
    """Returns the op of the module's loss; raises if a plan has no such loss."""
    node = _without_balance(builder, builder.traced.follow(node))
    op = _term(builder, node)
    if op is not None:
        if builder.balance and builder.balanced != builder.routers:
            raise refuse(node, "a balancing loss of other layers than the model's mixtures of experts",
                         "prun.losses.balance is that of all mixtures")
        if builder.balance and "shifted" in builder.inputs_used:
            builder.notes.append("The balancing loss counts the tokens of a sample without its last one.")
        if builder.balance:
            op.text += f' + {number_text(builder.balance)} * prun.losses.balance(loads):named "balance"'
        return op
    raise _unknown(node)


def _unknown(node: Node) -> ExportError:
    hint = "a plan's loss is F.cross_entropy, F.mse_loss, a mean of numbers of each sample, or a sum of such losses"
    summed = op_name(node) == "sum"
    error = refuse(node, "a sum instead of a mean" if summed else "prun has no such loss",
                   'use reduction="mean" or .mean()' if summed else hint)
    error.unknown = node.target
    return error


def _term(builder: Builder, node: Node) -> Op | None:
    """Returns the op of a loss, of a sum of losses, or of one times a number; None if it is something else."""
    return (contrastive.loss(builder, node) or cross_entropy(builder, node) or mean_squared_error(builder, node)
            or shuffles.mean(builder, node) or _mean(builder, node) or _changed(builder, node))


def _mean(builder: Builder, node: Node) -> Op | None:
    """The mean of numbers that are computed from the inputs."""
    if node.target is not aten.mean.default or not isinstance(node.args[0], Node):
        return None
    x, samples = operand(builder, node.args[0]), samples_of(builder)
    if not x.shape or x.shape[0] % samples:
        return None
    if x.shape[0] != samples:
        x = reshaped(builder, x, (samples, math.prod(x.shape) // samples), node)
    return builder.emit("loss", "prun.losses.mean({0})", [x], node, shape=(1,))


_SUMS = {aten.add.Tensor: "({0} + {1})", aten.add_.Tensor: "({0} + {1})", aten.sub.Tensor: "({0} - {1})"}


def _changed(builder: Builder, node: Node) -> Op | None:
    """a + b, a - b, a * 2, a / 2 and -a of losses."""
    number = builder.traced.number
    a, b = (*node.args[:2], None, None)[:2]
    if node.target in _SUMS and isinstance(a, Node) and isinstance(b, Node) and not node.kwargs:
        terms = [_value(builder, one) for one in (a, b)]
        return builder.emit("loss", _SUMS[node.target], terms, node, shape=(1,))
    factor = -1.0 if node.target is aten.neg.default else number(b)
    if node.target is aten.mul.Tensor and factor is None:
        a, factor = b, number(a)
    if not factor or not isinstance(a, Node) or node.target not in (
            aten.neg.default, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor):
        return None
    factor = 1 / factor if node.target is aten.div.Tensor else factor
    return builder.emit("loss", f"{{0}} * {number_text(factor)}", [_value(builder, a)], node, shape=(1,))


def _value(builder: Builder, node: Node) -> Op:
    """Returns the op of a term."""
    node = builder.traced.follow(node)
    if node not in builder.made:
        op = None if shape_of(node) else _term(builder, node)
        if op is None:
            raise _unknown(node)
        builder.made[node] = op
    return builder.made[node]
