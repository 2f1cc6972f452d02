"""Builds the plan's ops from the loss backwards: the first rule that recognises a node makes its op."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .ops import Op, Part, Weight
from .trace import Traced, modules_of, op_name, refuse, shape_of

# The likely way round for common ops.
_HINTS = {
    "conv1d": "prun has no convolution yet; a patch embedding can be a reshape in the data and nn.Linear",
    "conv2d": "prun has no convolution yet; a patch embedding can be a reshape in the data and nn.Linear",
    "convolution": "prun has no convolution yet; a patch embedding can be a reshape in the data and nn.Linear",
    "batch_norm": "prun has no batch norm; use nn.LayerNorm",
    "group_norm": "prun has no group norm; use nn.LayerNorm",
    "softmax": "attention is recognised as softmax(q @ k.T / sqrt(size) + mask) @ v over heads [B, heads, T, size]",
    "detach": "a plan has no stop of gradients; compute it outside the module and pass it as data",
    "lstm": "prun has no recurrent layers",
    "gru": "prun has no recurrent layers",
    "item": "a plan is the same for each batch: remove the branch or the number that depends on the data (.item())",
    "randn_like": "only nn.Dropout is random in a plan",
    "rand_like": "only nn.Dropout is random in a plan",
    "bernoulli": "only nn.Dropout is random in a plan",
    "sigmoid": "prun has silu(gate) * up; relu, gelu and tanh stand alone",
    "silu": "prun has silu(gate) * up; relu, gelu and tanh stand alone",
    "index": "prun cannot pick elements by index yet",
    "gather": "prun cannot pick elements by index yet",
    "where": "prun has no masks of its own yet; attention masks are recognised if they are causal",
    "mean": "reductions exist in norms and losses only",
    "sum": "reductions exist in norms and losses only",
}


class Builder:
    """The ops made so far. Rules call `value` for their inputs."""

    def __init__(self, traced: Traced, rules: list[Callable[[Builder, Node], Op | None]]) -> None:
        self.traced = traced
        self.rules = rules
        self.ops: list[Op] = []
        self.made: dict[Any, Op] = {}
        self.notes: list[str] = []
        self.owner_of: dict[str, tuple[Op, str]] = {}
        self.context = 0  # tokens in a sample
        self.ids: set[Node] = set()  # inputs that are token ids
        self.inputs_used: dict[str, Node] = {}  # inputs of the plan, "tokens", "targets", "x" and "y"
        self.vocab = 0

    def value(self, arg: Any) -> Op:
        """Returns the op that computes a traced node."""
        if not isinstance(arg, Node):
            raise TypeError(f"{arg} is not traced")
        node = self.traced.strip(arg)
        if node in self.made:
            return self.made[node]
        if node in self.traced.constants:
            raise refuse(node, "a constant tensor where a plan needs an activation",
                         "make it an nn.Parameter, or fold it into the layer next to it")
        if node in self.traced.inputs:
            return self.input(node)
        if node in self.traced.parameters:
            raise refuse(next(iter(node.users), node), f"the parameter {self.traced.parameters[node]} outside a layer "
                         "that prun knows", "")
        for rule in self.rules:
            op = rule(self, node)
            if op is not None:
                self.made[node] = op
                return op
        raise refuse(node, "prun has no function for it", _HINTS.get(op_name(node), ""))

    def input(self, node: Node) -> Op:
        """Returns the op for samples that are numbers, batch.x."""
        known = self.inputs_used.setdefault("x", node)
        if known is not node:
            raise refuse(next(iter(node.users), node), f"two inputs with numbers, {known.name} and {node.name}",
                         "a plan's model has batch.x and batch.y; concatenate the inputs")
        op = Op("input", "batch.x", [], shape_of(node), node)
        self.made[node] = op
        return op

    def emit(self, kind: str, text: str, inputs: list[Op], node: Node, **more: Any) -> Op:
        """Adds an op in the order of execution."""
        op = Op(kind, text, inputs, more.pop("shape", None) or shape_of(node), node, **more)
        for suffix, weight in [*op.weights.items(), *op.tables.items()]:
            for part in weight.parts:
                if part.rows is None and part.columns is None:
                    self.owner_of.setdefault(part.parameter, (op, suffix))
        for one in inputs:
            one.users.append(op)
        self.ops.append(op)
        return op

    def layer_of(self, node: Node, depth: int = 1) -> str:
        """Returns the name that the module tree gives the layer of a node: the last name in its path."""
        for path in reversed(modules_of(node)):
            names = [name for name in path.split(".") if name and not name.isdigit()]
            if names:
                return names[-1]
        return "layer"

    def part(self, node: Any, **how: Any) -> Part:
        """Returns a part that is a parameter; raises if the node is not one."""
        name = self.traced.parameter(node)
        if name is None:
            raise refuse(node if isinstance(node, Node) else None, "a weight that is computed",
                         "weights are parameters of their own: store the result as an nn.Parameter")
        return Part(name, **how)

    def columns(self, weight: torch.Tensor) -> int:
        """Returns how many outputs a weight in the plan's layout has."""
        return int(weight.shape[-1])


def number_text(value: float) -> str:
    """Returns a number as Lua and people write it, in full precision."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def whole(parameter: str) -> Weight:
    """Returns the weight that is one parameter as it is."""
    return Weight([Part(parameter)])
