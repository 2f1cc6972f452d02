"""Norms of channels: nn.GroupNorm, nn.InstanceNorm and nn.BatchNorm.

nn.BatchNorm's running statistics are buffers of the plan, which prun trains with and writes back.
"""
from __future__ import annotations

from typing import Any

from torch.fx import Node

from ..buffers import BATCH_NORMS, batch_norm_of
from ..builder import Builder, number_text, whole
from ..ops import Op, Part, Weight
from ..trace import aten, is_getitem, refuse, shape_of
from .views import operand


def _emit(builder: Builder, node: Node, text: str, x: Any, parameters: list[Any], options: list[str],
          buffers: dict[str, Weight] | None = None) -> Op:
    weights = {suffix: whole(builder.part(one).parameter) for suffix, one in zip((".weight", ".bias"), parameters)
               if one is not None}
    tail = f", {{{{ {', '.join(options)} }}}}" if options else ""
    return builder.emit(text.split("(")[0].removeprefix("nn."), f"{text}{tail})", [operand(builder, x)], node,
                        layer=builder.layer_of(node), weights={**weights, **(buffers or {})}, shape=shape_of(x))


def _eps(value: Any) -> list[str]:
    return [] if value == 1e-5 else [f"eps = {number_text(float(value))}"]


def group_norm(builder: Builder, node: Node) -> Op | None:
    """nn.GroupNorm."""
    if node.target is not aten.group_norm.default:
        return None
    x, groups, weight, bias, eps = (*node.args, *(None, None, 1e-5)[len(node.args) - 2:])[:5]
    options = _eps(eps) + ([] if weight is not None else ["affine = false"])
    return _emit(builder, node, f"nn.groupnorm({{layer}}, {{0}}, {groups}", x, [weight, bias], options)


def instance_norm(builder: Builder, node: Node) -> Op | None:
    """nn.InstanceNorm without running statistics."""
    if node.target is not aten.instance_norm.default:
        return None
    x, weight, bias, mean, _, _, _, eps = node.args[:8]
    if mean is not None:
        raise refuse(node, "an instance norm with running statistics",
                     "use track_running_stats=False, which is the default, or a batch norm")
    options = _eps(eps) + (["affine = true"] if weight is not None else [])
    return _emit(builder, node, "nn.instancenorm({layer}, {0}", x, [weight, bias], options)


def batch_norm(builder: Builder, node: Node) -> Op | None:
    """nn.BatchNorm, whose statistics are those of the whole batch."""
    norm = node.args[0] if is_getitem(node) and node.args[1] == 0 else node
    if not isinstance(norm, Node) or norm.target not in BATCH_NORMS:
        return None
    if norm is node and norm.target is not aten.batch_norm.default:
        return None
    path, module = batch_norm_of(builder.traced, norm)
    if f"{path}.running_mean" in builder.owner_of:
        raise refuse(norm, f"the batch norm {path}, which is applied twice",
                     "give each place a batch norm of its own: a step updates running statistics once")
    options, buffers = _eps(module.eps), {}
    if not module.affine:
        options.append("affine = false")
    if not module.track_running_stats:
        options.append("track_running_stats = false")
    elif module.momentum is None:
        options.append("cumulative = true")
    elif module.momentum != 0.1:
        options.append(f"momentum = {number_text(float(module.momentum))}")
    if module.track_running_stats:
        buffers = {f".{name}": Weight([Part(f"{path}.{name}".lstrip("."))])
                   for name in ("running_mean", "running_var", "num_batches_tracked")}
    return _emit(builder, norm, "nn.batchnorm({layer}, {0}", norm.args[0], list(norm.args[1:3]), options, buffers)
