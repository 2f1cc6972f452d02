"""Samples without their last token, for modules that take all tokens as ids and as targets, and shift the targets.

Such a module computes one token more than the plan, whose last token is only a target. Most ops do not count tokens. If
some do, such as a reshape, the module is traced with samples that are one token shorter. That gives the plan of the whole
samples only if no token depends on later ones, which `is_causal` checks on the example.
"""
from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn

from .builder import Builder
from .capture import arguments, mode
from .trace import shape_of

_CLOSE = 1e-5  # of losses in f32
# Ops whose numbers are widths, or count tokens in the plan's own way.
_FREE = {"linear", "qkv", "attention", "whole attention", "rotary", "embedding", "moe", "loss", "relative", "layernorm",
         "rmsnorm"}


def shifts(builder: Builder) -> bool:
    """Returns whether the module shifts the targets and computes the last token, too."""
    return "shifted" in builder.inputs_used and not builder.cut and not builder.named


def counts_tokens(builder: Builder) -> bool:
    """Returns whether an op may have a number of tokens."""
    tokens = builder.context + 1
    numbers = {int(one) for op in builder.ops if op.kind not in _FREE
               for one in re.findall(r"(?<![\w.{])\d+(?![\w.}])", op.text)}
    return any(one and one % tokens == 0 or one == builder.context for one in numbers)


def without_last(tokens: int, example: Any) -> Any:
    """Returns the example without the last token of each sample of that many tokens."""

    def cut(value: Tensor) -> Tensor:
        return value[:, :-1].contiguous() if value.dim() == 2 and value.shape[1] == tokens else value

    return torch.utils._pytree.tree_map_only(Tensor, cut, example)


def _loss_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    with torch.no_grad(), mode(module, False):
        flat, _ = torch.utils._pytree.tree_flatten(module(*args, **kwargs))
    return next(float(one) for one in flat if isinstance(one, Tensor) and one.dim() == 0 and one.is_floating_point())


def is_causal(module: nn.Module, builder: Builder, example: Any) -> bool:
    """Returns whether the loss of a sample's first tokens is the same without its last one, which needs ids and targets
    that are arguments of their own.
    """
    if next(module.parameters()).dtype == torch.float64:  # in which PyTorch lacks some ops
        module = copy.deepcopy(module).float()
    targets = builder.inputs_used["shifted"]
    tokens, ignored = shape_of(targets)[1], builder.ignored[targets]
    short = _loss_of(module, *arguments(without_last(tokens, example)))
    flat, spec = torch.utils._pytree.tree_flatten(arguments(example))
    places = [i for i, one in enumerate(flat) if isinstance(one, Tensor) and one.shape == shape_of(targets)]
    for at in places if tokens > 2 and len(places) > 1 else []:
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
