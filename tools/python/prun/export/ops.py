"""Ops of the plan that is being made, before they have units and names."""
from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Node


@dataclass
class Part:
    """A piece of a plan's tensor: a module's parameter, some of its rows or columns, or zeros.

    The plan's tensors of linear layers are [in, out], those of experts [experts, in, out], so `transpose` is true for a
    weight of nn.Linear. `columns`
    selects elements of the last dim after transposing, `rows` of the first one; None selects all. `table`: leading dims
    of the parameter are joined to one. `lookup`: `rows` are all that the module ever reads. `flat`: all dims but the
    first are joined, as for a convolution's patches.
    """

    parameter: str
    transpose: bool = False
    columns: Tensor | None = None
    rows: Tensor | None = None
    table: bool = False
    lookup: bool = False
    flat: bool = False

    def _view(self, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor.view(1)
        if self.table:
            return tensor.view(-1, tensor.shape[-1])
        if self.flat:
            tensor = tensor.view(tensor.shape[0], -1)
        return tensor.transpose(-1, -2) if self.transpose else tensor

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the piece as a tensor in the plan's layout."""
        tensor = self._view(tensor)
        if self.rows is not None:
            tensor = tensor[self.rows]
        return tensor if self.columns is None else tensor[..., self.columns]

    def put(self, piece: Tensor, into: Tensor) -> None:
        """Writes a piece in the plan's layout back into the parameter's tensor."""
        into = self._view(into)
        if self.rows is not None:
            into[self.rows] = piece.to(into.dtype)
        elif self.columns is not None:
            into[..., self.columns] = piece.to(into.dtype)
        else:
            into.copy_(piece)


@dataclass
class Weight:
    """A tensor of the plan: parts side by side in the last dim, or a constant, which is frozen."""

    parts: list[Part]
    constant: Tensor | None = None

    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """Returns the tensor that the plan starts with."""
        if self.constant is not None:
            return self.constant.to(next(iter(tensors.values())).dtype).contiguous()
        dtype = next(iter(tensors.values())).dtype
        pieces = [part.of(tensors[part.parameter]).detach() for part in self.parts]
        pieces = [piece if piece.is_floating_point() else piece.to(dtype) for piece in pieces]  # a count of batches
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)).contiguous()

    def restore(self, trained: Tensor, tensors: dict[str, Tensor]) -> None:
        """Writes a trained tensor of the plan into the module's parameters."""
        at = 0
        for part in self.parts:
            into = tensors[part.parameter]
            width = part.of(into).shape[-1]
            part.put(trained[..., at:at + width], into)
            at += width


@dataclass(eq=False)
class Op:
    """An op of the plan.

    `text`: a Lua expression with {0}, {1} for inputs, {layer} for the layer's quoted name and {ROLE} for the quoted
    name of each of `tables`. `weights`: the layer's tensors by suffix, ".weight" and ".bias". `tables`: parameters that
    the expression names itself, by role. `again`: the op that owns the weight, if this one uses another's. `node`: the
    traced node, which determines the unit. `repeats`: the op before that has the same layer, if a module is applied several
    times. `role`: the name that strategies look for, "" = none, if the rule sets it.
    """

    kind: str
    text: str
    inputs: list[Op]
    shape: tuple[int, ...]
    node: Node
    layer: str = ""
    weights: dict[str, Weight] = field(default_factory=dict)
    tables: dict[str, Weight] = field(default_factory=dict)
    again: Op | None = None
    repeats: Op | None = None
    unit: str = ""
    users: list[Op] = field(default_factory=list)
    name: str = ""
    role: str | None = None
    names: dict[str, str] = field(default_factory=dict)


def in_order_of_execution(ops: list[Op], order: dict[Node, int]) -> list[Op]:
    """Returns the ops in the order in which the module computes them, each after its inputs. Rules made them from the
    loss backwards, so that a model of two towers would alternate between them."""
    waiting = {id(op): sum(one.kind != "input" for one in set(op.inputs)) for op in ops}
    place = {id(op): i for i, op in enumerate(ops)}
    ready = [(order[op.node], place[id(op)]) for op in ops if waiting[id(op)] == 0]
    heapq.heapify(ready)
    result: list[Op] = []
    while ready:
        op = ops[heapq.heappop(ready)[1]]
        result.append(op)
        for user in set(op.users):
            waiting[id(user)] -= 1
            if waiting[id(user)] == 0:
                heapq.heappush(ready, (order[user.node], place[id(user)]))
    _own_first(result)
    return result


def _own_first(ops: list[Op]) -> None:
    """Makes the first op that uses a table its owner."""
    seen: set[int] = set()
    for op in ops:
        owner = op.again
        if owner is not None and id(owner) not in seen:
            op.again, op.tables = None, {"token": owner.tables.pop("token"), **op.tables}
            for other in ops:
                if other is owner or other.again is owner:
                    other.again = op
        seen.add(id(op))
