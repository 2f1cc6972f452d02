"""Mixtures of SwiGLU experts, as in transformers' Mixtral, Qwen3-MoE and DeepSeek-V3: each token goes to the experts with
the k largest scores, of the best groups if there are groups, and the results are weighted by these scores.

Programs sort, group and scatter rows in many ways. The rule evaluates the traced part on random numbers and compares
the result with the definition, for each kind of routing.
"""
from __future__ import annotations

import dataclasses
import math
from itertools import permutations

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder
from ..ops import Op, Part, Weight
from ..trace import aten, shape_of
from .layers import Layer, read_layer

_ENDS = {aten.sum.dim_IntList, aten.index_add.default, aten.index_add_.default}


@dataclasses.dataclass(frozen=True)
class Routing:
    """The options of nn.moe; `groups` of experts, of which `kept` are the best by their two best scores."""
    choices: int
    scores: str = "softmax"
    renormalise: bool = True
    groups: int = 1
    kept: int = 1

    def weights(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the weights and the experts of each row."""
        scores = keys = logits.softmax(-1) if self.scores == "softmax" else logits.sigmoid()
        if self.kept < self.groups:
            grouped = scores.unflatten(-1, (self.groups, -1))
            best = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1).topk(self.kept).indices
            kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter(-1, best, True)
            keys = grouped.masked_fill(~kept[..., None], -math.inf).flatten(-2)
        chosen = keys.topk(self.choices).indices
        shares = scores.gather(-1, chosen)
        return shares / shares.sum(-1, keepdim=True) if self.renormalise else shares, chosen


def mixture_of(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, routing: Routing) -> Tensor:
    """Returns the results [rows, width] of rows x. `router` [experts, width], `gate_up` [experts, 2 * hidden, width],
    `down` [experts, width, hidden].
    """
    shares, chosen = routing.weights(x @ router.T)
    result = torch.zeros_like(x)
    for expert in range(router.shape[0]):
        gate, up = (x @ gate_up[expert].T).chunk(2, -1)
        share = (shares * (chosen == expert)).sum(-1, keepdim=True)
        result += share * ((torch.nn.functional.silu(gate) * up) @ down[expert].T)
    return result


def _router(builder: Builder, node: Node) -> Layer | None:
    return read_layer(builder, node) if node.target is aten.linear.default else None


def _routing(builder: Builder, node: Node) -> tuple[Node, Node, int] | None:
    """Returns the rows that the last top-k before `node` routes, the node of its router, and k."""
    seen, todo, found = {node}, [node], None
    while todo:
        one = todo.pop()
        if one.target is aten.topk.default and (found is None or builder.traced.order[one] > builder.traced.order[found]):
            found = one
        for before in one.all_input_nodes if one.target is not aten.topk.default else []:
            if before not in seen and before not in builder.traced.constants and _router(builder, before) is None:
                seen.add(before)
                todo.append(before)
    if found is None:
        return None
    node = builder.traced.follow(found.args[0])  # type: ignore[arg-type]
    while node.op == "call_function" and _router(builder, node) is None and isinstance(node.args[0], Node):
        node = builder.traced.follow(node.args[0])
    layer = _router(builder, node)
    k = found.args[1]
    return (builder.traced.strip(layer.x), node, k) if layer is not None and isinstance(k, int) else None


def mixture(builder: Builder, node: Node) -> Op | None:
    """nn.moe of SwiGLU experts."""
    traced = builder.traced
    routed = _routing(builder, node) if node.target in _ENDS else None
    if routed is None:
        return None
    x, router_logits, choices = routed
    _, leaves = traced.cone(node, lambda one: True, [x])
    parameters = [one for one in leaves if one in traced.parameters]
    if x not in leaves or len(parameters) != 3 or len(leaves) != 4:
        return None
    random = torch.Generator().manual_seed(1)
    given = {one: torch.randn(shape_of(one), generator=random, dtype=torch.float64) for one in leaves}
    try:
        values = traced.evaluate(node, given)
    except RuntimeError:  # an op that has no kernel for f64
        return None
    for order in permutations(parameters):
        router, gate_up, down = (shape_of(one) for one in order)
        if len(router) != 2 or len(gate_up) != 3 or down != (router[0], router[1], gate_up[1] // 2):
            continue
        rows = given[x].reshape(-1, router[1])
        for routing in _routings(builder, node, choices, router[0]):
            wanted = mixture_of(rows, given[order[0]], given[order[1]], given[order[2]], routing)
            scale = float((values.flatten() @ wanted.flatten()) / (wanted.flatten() @ wanted.flatten()))
            if scale > 0 and torch.allclose(values.reshape(rows.shape), scale * wanted, rtol=1e-9, atol=1e-9):
                builder.routers.add(router_logits)
                return _emit(builder, node, x, order, routing, round(scale, 9))
    return None


def _routings(builder: Builder, node: Node, choices: int, experts: int) -> list[Routing]:
    """Returns the kinds of routing that the nodes before `node` may be."""
    inside, _ = builder.traced.cone(node, lambda one: True)
    tops = [(shape_of(one.args[0]), one.args[1]) for one in inside if one.target is aten.topk.default]  # type: ignore[arg-type]
    groups = {(shape[-2], k) for shape, _ in tops if len(shape) == 3 and shape[-2] * shape[-1] == experts
              for other, k in tops if other[-1] == shape[-2] and len(other) == 2}
    return [Routing(choices, scores, divided, *grouped) for grouped in ((1, 1), *sorted(groups))
            for scores in ("softmax", "sigmoid") for divided in (True, False)]


def _emit(builder: Builder, node: Node, x: Node, parameters: tuple[Node, ...], routing: Routing, scale: float) -> Op:
    router, gate_up, down = (builder.traced.parameters[one] for one in parameters)
    experts, inner = shape_of(parameters[1])[:2]
    hidden = inner // 2
    weights = {
        ".router.weight": Weight([Part(router, True)]),
        ".gate.weight": Weight([Part(gate_up, True, torch.arange(hidden))]),
        ".up.weight": Weight([Part(gate_up, True, torch.arange(hidden, inner))]),
        ".down.weight": Weight([Part(down, True)]),
    }
    more = [f"scores = \"{routing.scores}\""] * (routing.scores != "softmax")
    more += ["renormalise = false"] * (not routing.renormalise) + [f"scale = {scale:g}"] * (scale != 1)
    more += [f"groups = {routing.groups}, groups_kept = {routing.kept}"] * (routing.kept < routing.groups)
    more += ["loads = loads"] * bool(builder.balance)
    options = ", ".join([f"experts = {experts}, choices = {routing.choices}, hidden = {hidden}, gated = true, aux = 0", *more])
    op = builder.value(x)
    return builder.emit("moe", f"nn.moe({{layer}}, {{0}}, {{{{ {options} }}}})", [op], node, weights=weights, layer="moe",
                        shape=op.shape)


def balancing_loss(logits: Tensor, choices: int) -> Tensor:
    """Returns the balancing loss of router logits [rows of all layers, experts] (Fedus et al. 2021, Switch Transformers,
    eq. 4, over the k choices): experts * sum over experts of (share of the choices) * (mean probability).
    """
    probabilities = logits.softmax(-1)
    chosen = probabilities.topk(choices).indices
    counts = torch.nn.functional.one_hot(chosen, logits.shape[-1]).sum((0, 1))
    return logits.shape[-1] * ((counts / logits.shape[0]) * probabilities.mean(0)).sum()


def balance(builder: Builder, node: Node) -> tuple[float, set[Node]] | None:
    """Returns the factor of a balancing loss and the layers whose router logits it reads; None for other nodes."""
    traced = builder.traced
    node, factor = traced.follow(node), 1.0
    while node.target in (aten.mul.Tensor, aten.mul_.Tensor):
        pairs = [(one, traced.number(two)) for one, two in (node.args, node.args[::-1])]
        one, number = next((pair for pair in pairs if pair[1] is not None), (None, None))
        if number is None or not isinstance(one, Node):
            break
        if one.target is aten.sum.default:  # the factor of the definition is the number of experts
            break
        node, factor = traced.follow(one), factor * number
    inside, leaves = traced.cone(node, lambda one: _router(builder, one) is None)
    choices = {one.args[1] for one in inside if one.target is aten.topk.default}
    if len(choices) != 1 or not all(_router(builder, one) for one in leaves):
        return None
    random = torch.Generator().manual_seed(2)
    layers = sorted(leaves, key=lambda one: traced.order[one])
    given = {one: torch.randn(shape_of(one), generator=random, dtype=torch.float64) for one in layers}
    logits = torch.cat([one.flatten(0, -2) for one in given.values()])
    wanted = balancing_loss(logits, int(choices.pop()))  # type: ignore[call-overload]
    return (factor, leaves) if torch.allclose(traced.evaluate(node, given), wanted, rtol=1e-6) else None
