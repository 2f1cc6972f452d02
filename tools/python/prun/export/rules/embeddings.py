"""Tables of tokens and of positions."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..builder import Builder, whole
from ..ops import Op, Part, Weight
from ..trace import aten, refuse, shape_of
from . import data
from .views import list_text, reshaped


def _table(builder: Builder, role: str, name: str) -> str:
    tensor = builder.traced.tensors[name]
    rows, width = tensor.numel() // tensor.shape[-1], tensor.shape[-1]
    return f'nn.parameter({{{role}}}, {{{{ {rows}, {width} }}}}, {{{{ "normal", 0.02 }}}})'


def _ids(builder: Builder, node: Node) -> Node | None:
    """Returns the input of token ids that an embedding looks up, or the node that computes ids from inputs; None if the
    ids are constant."""
    arg = node.args[1]
    if arg in builder.traced.constants:
        return None
    assert isinstance(arg, Node)
    chosen = builder.traced.selection(arg)
    if chosen is not None and chosen[0] in builder.traced.inputs:
        shape, index = shape_of(chosen[0]), chosen[1].flatten()
        every = torch.arange(math.prod(shape))
        if torch.equal(index, every):
            return chosen[0]
        if len(shape) == len(shape_of(arg)) == 2 and torch.equal(index, every.view(shape)[:, :-1].flatten()):
            builder.cut.add("ids")
            return chosen[0]
    if data.depends_on_data(builder, arg):
        return arg
    raise refuse(node, "ids that are computed", "pass the ids as an argument of the module")


def _tokens(builder: Builder, node: Node) -> tuple[str, Node] | None:
    if node.target is not aten.embedding.default:
        return None
    source = _ids(builder, node)
    if source is None:
        raise refuse(node, "positions that are added to something else than the embedding of tokens",
                     "prun adds positions to embedding(tokens) as it is, without a factor or a layer in between")
    name = builder.traced.parameter(node.args[0])
    if name is None:
        raise refuse(node, "a table that is computed", "an embedding's table is a parameter of its own")
    known = source if builder.named or source not in builder.traced.inputs else builder.inputs_used.setdefault("tokens", source)
    if known is not source:
        raise refuse(node, f"two inputs of ids, {known.name} and {source.name}", "a plan's model has batch.tokens")
    if len(node.args) > 3 and node.args[3]:
        raise refuse(node, "gradients scaled by how often a token occurs", "use scale_grad_by_freq=False")
    if _padding(node) >= 0 and source in builder.traced.inputs:
        note = (f"padding_idx = {_padding(node)} of {name}: PyTorch leaves this token's row out of the embedding's "
                "gradient; train on data without this token")
        builder.notes += [] if note in builder.notes else [note]
    return name, source


def _padding(node: Node) -> int:
    """Returns the id whose row has no gradient; -1 if there is none."""
    padding = node.args[2] if len(node.args) > 2 else -1
    return padding if isinstance(padding, int) else -1


def _without_gradient(builder: Builder, node: Node, op: Op) -> Op:
    """Returns the embedding of computed ids, whose padding has no gradient."""
    if not op.inputs or _padding(node) < 0:
        return op
    ids = op.inputs[0]
    text = f"nn.where(nn.equal(nn.unsqueeze({{0}}, {len(ids.shape)}), {_padding(node)}), nn.detach({{1}}), {{1}})"
    return builder.emit("where", text, [ids, op], node, shape=op.shape)


def _batch(builder: Builder, source: Node, reader: Node) -> tuple[str, list[Op]]:
    """Returns the ids as Lua, and the op that computes them."""
    if source not in builder.traced.inputs:
        return "{0}", [data.ids(builder, source, reader)]
    return builder.named_input(source) if builder.named else "batch.tokens", []


def _owner(builder: Builder, name: str) -> Op | None:
    """Returns the embedding that has looked up tokens in the table before, such as the encoder's."""
    owner, role = builder.owner_of.get(name, (None, ""))
    return owner if owner is not None and owner.kind == "embedding" and role == "token" else None


def tokens(builder: Builder, node: Node) -> Op | None:
    """nn.Embedding of token ids."""
    found = _tokens(builder, node)
    if found is None:
        return None
    name, source = found
    ids, inputs = _batch(builder, source, node)
    samples, *places = shape_of(source)
    rows = math.prod(places)
    if len(places) != 1:
        ids = f"nn.reshape({ids}, {list_text([-1, rows])})"
    # A table that only computed ids select is one of positions, most often.
    role = "position" if inputs and isinstance(node.args[0], Node) and len(node.args[0].users) == 1 else "token"
    text = f"nn.embedding({ids}, {_table(builder, role, name)})"
    owner, shape = _owner(builder, name), (samples, rows, *shape_of(node)[len(places) + 1:])
    if owner is not None:
        op = builder.emit("embedding", text, inputs, node, again=owner, shape=shape)
    else:
        op = builder.emit("embedding", text, inputs, node, tables={role: whole(name)}, shape=shape)
    return _without_gradient(builder, node, reshaped(builder, op, shape_of(node), node))


def _positions(builder: Builder, node: Any) -> tuple[str, Tensor] | None:
    """Returns the table of positions and the rows that it is read at, if the node looks up positions."""
    traced = builder.traced
    if not isinstance(node, Node):
        return None
    while traced.same(node) or node.target in (aten.unsqueeze.default, aten.expand.default):
        node = traced.follow(node) if traced.same(node) else node.args[0]
    name: str | None = None
    rows: Any = None
    if node.target is aten.embedding.default and node.args[1] in traced.constants:
        name, rows = traced.parameter(node.args[0]), traced.constants[node.args[1]].flatten()
        rows = rows[:shape_of(node)[-2]]
    else:
        chosen = traced.selection(node)
        width = shape_of(node)[-1:]
        if chosen is None or chosen[0] not in traced.parameters or width != shape_of(chosen[0])[-1:]:
            return None
        index = chosen[1].reshape(-1, *width)
        rows = index[:, 0] // width[0]
        if not torch.equal(index, rows[:, None] * width[0] + torch.arange(width[0])):
            return None
        name = traced.parameters[chosen[0]]
    return None if name is None else (name, rows)


def tokens_and_positions(builder: Builder, node: Node) -> Op | None:
    """The sum of an embedding of tokens and one of positions that count up."""
    if node.target not in (aten.add.Tensor, aten.add_.Tensor) or not isinstance(node.args[1], Node):
        return None
    for ids, places in (node.args[:2], node.args[1::-1]):
        found = _positions(builder, places)
        if found is None or not isinstance(ids, Node):
            continue
        ids = builder.traced.strip(ids)
        if ids.target is not aten.embedding.default or ids.args[1] in builder.traced.constants:
            continue
        known = _tokens(builder, ids)
        assert known is not None
        if _owner(builder, known[0]) is not None or known[1] not in builder.traced.inputs:
            return None  # functions.py adds the positions to the tokens
        name, rows = found
        table = next(one for one, known in builder.traced.parameters.items() if known == name)
        if len(table.users) > 1:  # such as an encoder's and a decoder's
            return None
        first = int(rows[0])
        if not torch.equal(rows, torch.arange(len(rows)) + first):
            if len(set(rows.tolist())) == 1:
                return None  # token types: functions.py adds the row
            raise refuse(node, "positions that do not count up", "positions are arange(tokens)")
        tensor = builder.traced.tensors[name]
        every = tensor.numel() // tensor.shape[-1]
        part = Part(name, rows=None if first == 0 else torch.arange(every).roll(-first), table=tensor.dim() != 2)
        tokens, inputs = _batch(builder, known[1], node)  # inputs of the module, without further ops
        text = f"nn.embedding({tokens}, {_table(builder, 'token', known[0])}, {_table(builder, 'position', name)})"
        return builder.emit("embedding", text, inputs, node, shape=shape_of(node),
                            tables={"token": whole(known[0]), "position": Weight([part])})
    return None
