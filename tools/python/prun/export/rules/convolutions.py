"""Convolutions, pools and resizing of images [samples, channels, height, width], and in one dim.

Resizing other than by whole factors is two products with constant matrices, which torch computes from unit vectors.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional

from ..builder import Builder, whole
from ..ops import Op
from ..trace import aten, refuse, shape_of
from .views import constant, list_text, operand

_CONVOLUTIONS = {aten.conv1d.default, aten.conv2d.default, aten.conv1d.padding, aten.conv2d.padding}
_TRANSPOSED = {aten.conv_transpose1d.default, aten.conv_transpose2d.input}
_POOLS = {aten.max_pool1d.default: "maxpool1d", aten.max_pool2d.default: "maxpool2d",
          aten.avg_pool1d.default: "avgpool1d", aten.avg_pool2d.default: "avgpool2d"}
_ADAPTIVE = {aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default}
_RESIZED = {aten.upsample_nearest1d.vec: "nearest", aten.upsample_nearest2d.vec: "nearest",
            aten.upsample_bilinear2d.vec: "bilinear", aten.upsample_bicubic2d.vec: "bicubic",
            aten.upsample_linear1d.vec: "linear"}


def _text(value: Any, dims: int) -> str:
    """Returns one number, or a list of different ones, for an option."""
    given = [value] if isinstance(value, int) else list(value)
    return str(given[0]) if len(set(given)) == 1 else list_text(given * (dims if len(given) == 1 else 1))


def _options(dims: int, defaults: dict[str, Any], **given: Any) -> list[str]:
    """Returns the options that are not the defaults, as Lua."""
    texts = {name: _text(value, dims) for name, value in given.items()}
    return [f"{name} = {text}" for name, text in texts.items() if text != str(defaults[name])]


def _tail(options: list[str]) -> str:
    return f", {{{{ {', '.join(options)} }}}}" if options else ""


_USUAL = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}


def _read(node: Node) -> tuple[bool, dict[str, Any]] | None:
    """Returns whether a convolution is transposed, and its numbers."""
    args: list[Any] = list(node.args)
    if node.target is aten.convolution.default:
        stride, padding, dilation, transposed, output_padding, groups = args[3:9]
    elif node.target in _CONVOLUTIONS:
        transposed, output_padding = False, 0
        stride, padding, dilation, groups = args[3:] + [1, 0, 1, 1][len(args) - 3:]
    elif node.target in _TRANSPOSED:
        transposed = True
        stride, padding, output_padding, groups, dilation = args[3:] + [1, 0, 0, 1, 1][len(args) - 3:]
    else:
        return None
    if len(shape_of(node)) > 4:
        return None
    if padding == "valid":
        padding = 0
    if padding == "same":
        kernel = shape_of(args[1])[2:]
        steps = [dilation] * len(kernel) if isinstance(dilation, int) else list(dilation) * (len(kernel) // len(dilation))
        reach = [(size - 1) * step for size, step in zip(kernel, steps)]
        if any(one % 2 for one in reach):
            raise refuse(node, "padding = \"same\" of an even kernel", "pad with F.pad before the convolution")
        padding = [one // 2 for one in reach]
    return transposed, {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation,
                        "groups": groups}


def convolution(builder: Builder, node: Node) -> Op | None:
    """nn.Conv1d, nn.Conv2d and their transposes; the weight may be computed, as with weight_norm."""
    found = _read(node)
    if found is None:
        return None
    transposed, numbers = found
    x, weight = node.args[:2]
    bias = node.args[2] if len(node.args) > 2 else None
    assert isinstance(x, Node) and isinstance(weight, Node)
    shape, dims = shape_of(node), len(shape_of(node)) - 2
    if not transposed:
        del numbers["output_padding"]
    options = _options(dims, _USUAL, **numbers)
    inputs, weights = [operand(builder, x)], {}
    name = builder.traced.reshaped_parameter(weight)
    if name is None:
        inputs.append(operand(builder, weight))
        options.append("weight = {1}")
    else:
        weights[".weight"] = whole(name)
    if bias is None:
        options.append("bias = false")
    else:
        weights[".bias"] = whole(builder.part(bias).parameter)
    word = f"conv{'_transpose' if transposed else ''}{dims}d"
    text = f"nn.{word}({{layer}}, {{0}}, {shape[1]}, {_text(shape_of(weight)[2:], dims)}{_tail(options)})"
    return builder.emit("conv", text, inputs, node, weights=weights, layer=builder.layer_of(node), shape=shape)


def pool(builder: Builder, node: Node) -> Op | None:
    """nn.MaxPool2d, nn.AvgPool2d, and adaptive means."""
    args: list[Any] = list(node.args)
    if node.target in _ADAPTIVE:
        sizes, dims = shape_of(args[0])[2:], len(shape_of(args[0])) - 2
        results = shape_of(node)[2:]
        x = operand(builder, args[0])
        if all(one == 1 for one in results):
            over = list_text(range(2, 2 + dims)) if dims > 1 else "2"
            return builder.emit("mean", f"nn.mean({{0}}, {over}, {{{{ keep = true }}}})", [x], node, shape=shape_of(node))
        if any(size % one for size, one in zip(sizes, results)):
            for dim, (old, new) in enumerate(zip(sizes, results), 2):
                shares = functional.adaptive_avg_pool1d(torch.eye(old, dtype=torch.float64)[:, None], new)[:, 0]
                x = _by_matrix(builder, node, x, dim, shares)
            return x
        kernel = _text([size // one for size, one in zip(sizes, results)], dims)
        return builder.emit("pool", f"nn.avgpool{dims}d({{0}}, {kernel})", [x], node, shape=shape_of(node))
    name = _POOLS.get(node.target)
    if name is None:
        return None
    dims = len(shape_of(args[0])) - 2
    kernel, largest = args[1], name.startswith("max")
    usual: list[Any] = [[], 0, 1, False] if largest else [[], 0, False, True, None]
    given = args[2:] + usual[len(args) - 2:]
    given += usual[len(given):]
    stride, padding = given[0] or kernel, given[1]
    ceil = given[3] if largest else given[2]
    options = _options(dims, {"stride": _text(kernel, dims), "padding": 0, "dilation": 1}, stride=stride, padding=padding,
                       dilation=given[2] if largest else 1)
    if not largest and not given[3]:
        options.append("count_padding = false")
    if not largest and given[4:] and given[4] is not None:
        raise refuse(node, "a mean with a divisor of its own", "multiply the mean by a number")
    x = operand(builder, args[0])
    if ceil and _floor_sizes(x.shape[2:], kernel, stride, padding, given[2] if largest else 1) != shape_of(node)[2:]:
        if largest:
            raise refuse(node, "a maximum with ceil_mode whose last window is cut", "use a size that its windows divide")
        return _cut_means(builder, node, x, [_list(one, dims) for one in (kernel, stride, padding)], bool(given[3]))
    return builder.emit("pool", f"nn.{name}({{0}}, {_text(kernel, dims)}{_tail(options)})", [x], node, shape=shape_of(node))


def _list(value: Any, dims: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * (dims if len(given) == 1 else 1)


def _cut_means(builder: Builder, node: Node, x: Op, numbers: list[list[int]], counted: bool) -> Op:
    """Means over windows of which the last are cut: products with a matrix of each dim's shares. `numbers`: kernel, stride
    and padding."""
    before, after = x.shape[2:], shape_of(node)[2:]
    if all(one == 1 for one in after) and not any(numbers[2]):
        over = list_text(range(2, 2 + len(after))) if len(after) > 1 else "2"
        return builder.emit("mean", f"nn.mean({{0}}, {over}, {{{{ keep = true }}}})", [x], node, shape=shape_of(node))
    for dim, (old, kernel, stride, padding) in enumerate(zip(before, *numbers), 2):
        unit = torch.eye(old, dtype=torch.float64)[:, None]
        shares = functional.avg_pool1d(unit, kernel, stride, padding, ceil_mode=True, count_include_pad=counted)[:, 0]
        x = _by_matrix(builder, node, x, dim, shares)
    return x


def _floor_sizes(sizes: tuple[int, ...], *numbers: Any) -> tuple[int, ...]:
    """Returns the size of a pool's result: kernel, stride, padding and dilation are numbers or lists."""
    result = []
    for i, size in enumerate(sizes):
        kernel, stride, padding, dilation = (one if isinstance(one, int) else one[i % len(one)] for one in numbers)
        result.append((size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
    return tuple(result)


def resize(builder: Builder, node: Node) -> Op | None:
    """F.interpolate, nn.Upsample."""
    mode = _RESIZED.get(node.target)
    if mode is None:
        return None
    arg = node.args[0]
    assert isinstance(arg, Node)
    before, after = shape_of(arg)[2:], shape_of(node)[2:]
    x = operand(builder, arg)
    if before == after:
        return x
    if mode == "nearest" and all(new % old == 0 for old, new in zip(before, after)):
        factor = _text([new // old for old, new in zip(before, after)], len(before))
        return builder.emit("upsample", f"nn.upsample({{0}}, {factor})", [x], node, shape=shape_of(node))
    aligned = bool(node.args[2]) if mode not in ("nearest",) and len(node.args) > 2 else None
    for dim, (old, new) in enumerate(zip(before, after), 2):
        if old != new:
            x = _by_matrix(builder, node, x, dim, _matrix(mode, old, new, aligned))
    return x


def _by_matrix(builder: Builder, node: Node, x: Op, dim: int, matrix: torch.Tensor) -> Op:
    """Replaces the elements of a dim by sums of them. `matrix` [old, new] has their shares."""
    last = len(x.shape) - 1
    text = "nn.matmul({0}, {1})" if dim == last else \
        f"nn.matmul({{0}}:transpose({dim}, {last}), {{1}}):transpose({dim}, {last})"
    shape = (*x.shape[:dim], matrix.shape[1], *x.shape[dim + 1:])
    return builder.emit("resize", text, [x, constant(builder, matrix, node, short=False)], node, shape=shape)


def _matrix(mode: str, old: int, new: int, aligned: bool | None) -> torch.Tensor:
    """Returns the weights of the old elements in each new one."""
    unit = torch.eye(old, dtype=torch.float64)
    if mode in ("nearest", "linear"):
        return functional.interpolate(unit[:, None], size=new, mode=mode, align_corners=aligned)[:, 0]
    wide = unit[:, None, None].expand(old, 1, 4, old)
    return functional.interpolate(wide, size=(4, new), mode=mode, align_corners=aligned)[:, 0, 0]


def weight_norm(builder: Builder, node: Node) -> Op | None:
    """A weight with a length and a direction, as torch.nn.utils.parametrizations.weight_norm has it."""
    if node.target is not aten._weight_norm.default:
        return None
    direction, length = node.args[:2]
    kept: Any = node.args[2] if len(node.args) > 2 else 0
    dims = len(shape_of(node))
    over = list_text([dim for dim in range(dims) if kept < 0 or dim != kept % dims])
    text = f"{{0}} * ({{1}} / nn.norm({{0}}, {over}, {{{{ keep = true }}}}))"
    return builder.emit("weight", text, [operand(builder, direction), operand(builder, length)], node, shape=shape_of(node))


RULES: list[Callable[[Builder, Node], Op | None]] = [convolution, pool, resize, weight_norm]
