"""Builds the plan's ops from the loss backwards: the first rule that recognises a node makes its op."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .errors import ExportError
from .hints import KNOWN, reason_of
from .ops import Op, Part, Weight
from .trace import MOVEMENT, Traced, is_getitem, modules_of, op_name, refuse, shape_of


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
        self.whole = False  # the module is traced with the plan's tokens, though it shifts the targets (prefix.py)
        self.shifted = False  # targets are an input by name, at each token the next one of the module's
        self.cut: set[str] = set()  # of "ids" and "targets", those that are all tokens of an input but one
        self.inputs_used: dict[str, Node] = {}  # inputs of the plan, "tokens", "targets", "x" and "y", or by their names
        self.named = _has_names(traced)  # inputs keep their names, because they are more than tokens and targets
        self.vocab = 0
        self.ignored: dict[Node, int] = {}  # inputs that are targets, with the value that the loss ignores
        self.balance = 0.0  # factor of the mixtures' balancing loss, and the layers whose router logits it reads
        self.balanced: set[Node] = set()
        self.masks: set[Node] = set()  # inputs of integers that are factors, which the plan reads as numbers
        self.norms: dict[Node, Any] = {}  # what rules/norms.py read of each node
        self.patches: dict[Node, Op] = {}  # convolutions as rows [batch, patches, out]
        self.routers: set[Node] = set()  # the layers whose results are the router logits of the mixtures made so far

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
        raise self._unknown(node)

    def _unknown(self, node: Node) -> ExportError:
        """Returns the error for a node that no rule recognises."""
        source = self.traced.selection(node) if node.target in MOVEMENT or is_getitem(node) else None
        if is_getitem(node) and source is None and isinstance(node.args[0], Node):
            node, source = node.args[0], None
        if source is None or source[0] is node or source[0].op != "call_function":
            error = refuse(node, *reason_of(node))
            error.unknown = node.target
            return error
        self.value(source[0])  # raises if it is the source that prun does not have
        return refuse(node, f"elements of the result of {op_name(source[0])} that are picked, joined or reordered",
                      KNOWN.get(op_name(node), "prun keeps rows [batch, tokens, width] whole and in order"))

    def named_input(self, node: Node) -> str:
        """Notes that the plan reads an input by its name; returns it as Lua."""
        name = self.traced.inputs[node]
        if not self.named:
            raise refuse(next(iter(node.users), node), f"the input {name} in a plan of tokens", "pass targets, too")
        self.inputs_used[name] = node
        return f"batch.{name}"

    def input(self, node: Node) -> Op:
        """Returns the op for samples that are numbers, batch.x, or for an input by its name."""
        name, shape = self.place(node, "x"), shape_of(node)
        numbers = node.meta["val"].is_floating_point() or node in self.masks
        # A number of each sample is a column of the data.
        op = Op("input", f"batch.{name}", [], (*shape, 1) if len(shape) == 1 and numbers else shape, node)
        self.made[node] = op
        return op

    def place(self, node: Node, otherwise: str) -> str:
        """Notes that the plan reads an input of numbers or classes; returns "x" for the first argument of two and "y" for
        the second, in the order of the data. `otherwise`: the name of the only one.
        """
        if self.named:
            return self.named_input(node).removeprefix("batch.")
        used = [one for one in self.traced.inputs if any(user.op != "output" for user in one.users)]
        name = "xy"[used.index(node)] if len(used) == 2 else otherwise
        if self.inputs_used.setdefault(name, node) is not node:
            raise refuse(next(iter(node.users), node), f"two inputs with numbers, {self.inputs_used[name].name} and "
                         f"{node.name}", "a plan's model has batch.x and batch.y; concatenate the inputs")
        return name

    def emit(self, kind: str, text: str, inputs: list[Op], node: Node, **more: Any) -> Op:
        """Adds an op in the order of execution."""
        shape = more.pop("shape", None) or self._shape(inputs, node)
        op = Op(kind, text, inputs, shape, node, **more)
        op.repeats = self._repeated(op)
        for suffix, weight in [*op.weights.items(), *op.tables.items()]:
            for part in weight.parts:
                if part.rows is None and part.columns is None:
                    self.owner_of.setdefault(part.parameter, (op, suffix))
        for one in inputs:
            one.users.append(op)
        self.ops.append(op)
        return op

    def _repeated(self, op: Op) -> Op | None:
        """Returns the first op that has the same weights and does the same; None if there is none."""
        mine = {**op.weights, **op.tables}
        if not mine or op.again is not None or any(not weight.parts for weight in mine.values()):
            return None
        known = {self.owner_of.get(part.parameter, (None, ""))[0] for weight in mine.values() for part in weight.parts}
        first = known.pop()
        if first is None or known or (first.kind, first.text, first.shape) != (op.kind, op.text, op.shape):
            return None
        theirs = {**first.weights, **first.tables}
        return first if theirs.keys() == mine.keys() and all(
            theirs[role].parts == mine[role].parts for role in mine) else None

    def _shape(self, inputs: list[Op], node: Node) -> tuple[int, ...]:
        """Returns the shape of an op that keeps its first input's rows, which `strip` may have found in another shape."""
        shape = shape_of(node)
        before = inputs[0].shape if inputs else shape
        return before if before[-1:] == shape[-1:] and math.prod(before) == math.prod(shape) else shape

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


def _has_names(traced: Traced) -> bool:
    """Returns whether the inputs are more than tokens and their targets, or numbers and their targets."""
    used = [node for node in traced.inputs
            if any(user.op != "output" and user not in traced.constants for user in node.users)]
    ids = [len(shape_of(node)) for node in used if not node.meta["val"].is_floating_point()]
    texts = any(node.target is torch.ops.aten.embedding.default and node.args[1] not in traced.constants
                and traced.source(node.args[1]) in traced.inputs for node in traced.nodes)  # type: ignore[arg-type]
    aten = torch.ops.aten
    sorts = any(node.target in (aten.argsort.default, aten.argsort.stable) and node.args[0] in traced.inputs
                for node in traced.nodes)
    return len(used) > 2 or sorted(ids) == [1, 2] or texts and len(ids) < len(used) or sorts


def number_text(value: float) -> str:
    """Returns a number as Lua and people write it, in full precision."""
    if math.isinf(value):
        return "math.huge" if value > 0 else "-math.huge"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def whole(parameter: str) -> Weight:
    """Returns the weight that is one parameter as it is."""
    return Weight([Part(parameter)])
