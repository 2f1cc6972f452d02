"""Samples without their last token, for modules that take all tokens as ids and as targets, and shift the targets.

Such a module computes one token more than the plan, whose last token is only a target. Layers and attention do not count
tokens. If other ops do, such as a reshape, the module is traced with samples that are one token shorter. The plan is the
same only if no token depends on later ones, which is checked on one sample of the example.
"""
from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn

from .builder import Builder
from .capture import arguments, mode
from .errors import ExportError
from .trace import shape_of

_CLOSE = 1e-5  # of losses in f32
# Ops of single tokens, or of the plan's own number of tokens, whose numbers are widths; and functions of elements.
_FREE = {"linear", "qkv", "attention", "whole attention", "rotary", "embedding", "moe", "loss", "relative", "layernorm",
         "rmsnorm"}
_ELEMENTS = {"add", "sub", "mul", "div", "scale", "pow", "dropout", "activation", "silu_mul", "silu", "sigmoid", "tanh",
             "relu", "exp", "softplus", "input"}


def _may_count(builder: Builder) -> bool:
    """Returns whether an op may mix tokens or have a number of them."""
    tokens = builder.context + 1
    for op in builder.ops:
        numbers = [int(one) for one in re.findall(r"(?<![\w.{])\d+(?![\w.}])", op.text)]
        if op.kind not in _FREE and (op.kind not in _ELEMENTS or any(one and one % tokens == 0 for one in numbers)):
            return True
    return False


def without_last(tokens: int, example: Any) -> Any:
    """Returns the example without the last token of each sample of that many tokens."""

    def cut(value: Tensor) -> Tensor:
        return value[:, :-1].contiguous() if value.dim() == 2 and value.shape[1] == tokens else value

    return torch.utils._pytree.tree_map_only(Tensor, cut, example)


def _loss_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    with torch.no_grad(), mode(module, False):
        flat, _ = torch.utils._pytree.tree_flatten(module(*args, **kwargs))
    return next(float(one) for one in flat if isinstance(one, Tensor) and one.dim() == 0 and one.is_floating_point())


def is_causal(module: nn.Module, builder: Builder, example: Any) -> bool | None:
    """Returns whether the loss of a sample's first tokens is the same without its last one; None if ids and targets are
    no arguments of their own.
    """
    if next(module.parameters()).dtype == torch.float64:  # in which PyTorch lacks some ops
        module = copy.deepcopy(module).float()
    targets = builder.inputs_used["shifted"]
    (samples, tokens), ignored = shape_of(targets), builder.ignored[targets]
    one = torch.utils._pytree.tree_map_only(
        Tensor, lambda value: value[:1] if value.shape[:1] == (samples,) else value, arguments(example))
    flat, spec = torch.utils._pytree.tree_flatten(one)
    places = [i for i, value in enumerate(flat) if isinstance(value, Tensor) and value.shape == (1, tokens)]
    if tokens < 3 or len(places) < 2:
        return None
    try:
        short = _loss_of(module, *without_last(tokens, one))
    except Exception:  # the module does not take one sample
        return None
    for at in places:
        given = [*flat]
        given[at] = flat[at].clone()
        given[at][:, -1] = ignored
        try:
            long = _loss_of(module, *torch.utils._pytree.tree_unflatten(given, spec))
        except IndexError:  # these are the ids
            continue
        if abs(long - short) <= _CLOSE * max(1.0, abs(short)):
            return True
    return False


def of_whole_samples(module: nn.Module, builder: Builder, example: Any, error: ExportError | None) -> Any:
    """Returns the example without its last tokens if the module is traced again with it; None if it is not."""
    shifts = "shifted" in builder.inputs_used and not builder.cut and not builder.named
    if not shifts or (not error and not _may_count(builder)):
        return None
    causal = is_causal(module, builder, example)
    if causal is False and error is None:
        raise ExportError("tokens whose results depend on later ones, which are the targets", hint="use causal attention")
    return without_last(builder.context + 1, example) if causal else None
