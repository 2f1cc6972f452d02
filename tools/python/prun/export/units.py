"""Units and layer names of the plan, from the module tree and from what layers are for.

A layer of a repeated list of modules (transformer.h.3) becomes a unit named after the list ("h3"). Ops before the
first of them form one unit, ops after the last another. Tensor parallelism finds layers by their roles: qkv, proj,
gate, up, down, logits and the table token; other layers keep their names in the module.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field

from .ops import Op
from .trace import modules_of

_ROLES = {"qkv", "q", "k", "v", "proj", "gate", "up", "down", "logits"}  # of lua/prun/strategies/tensor_parallel.lua


@dataclass
class Unit:
    """A unit: its name, its ops, and the values that it reads from other units and passes on."""

    name: str
    ops: list[Op] = field(default_factory=list)
    reads: list[Op] = field(default_factory=list)
    gives: list[Op] = field(default_factory=list)
    again: bool = False
    path: str = ""
    key: str = ""


def _list_of(op: Op) -> tuple[str, int, str] | None:
    """Returns the name of the outermost list of modules that an op was traced in, the op's place in it, and its path."""
    for path in modules_of(op.node):
        found = re.match(r"(?:(.*?)\.)?(\w+)\.(\d+)(?:\.|$)", "." + path if "." not in path else path)
        if found:
            whole = re.match(r".*?\.\d+(?=\.|$)", path)
            return found.group(2), int(found.group(3)), whole.group(0) if whole else path
    return None


def _role(op: Op) -> str:
    """Returns the role of a linear layer; "" if it has none that a strategy looks for."""
    def through(ops: list[Op], ahead: bool) -> list[Op]:
        return [two for one in ops for two in
                (through(one.users if ahead else one.inputs, ahead) if one.kind in ("dropout", "scale") else [one])]

    def of_layers(product: Op) -> bool:
        """Returns whether layers make both factors; those of adapters are sums."""
        return all(two.kind == "linear" for two in through(product.inputs, False))

    if op.role is not None:
        return op.role
    if op.kind == "qkv":
        return "qkv"
    makers, users = through(op.inputs, False), through(op.users, True)
    if any(one.kind == "attention" for one in makers):
        return "proj"
    role = _gated_role(makers, users)
    factors = [two for one in makers for two in through(one.inputs, False) if two.kind == "linear"]
    if role and not (role == "down" and any(_role(two) == "down" for two in factors)):
        return role
    for one in users:
        if one.kind == "silu_mul" and of_layers(one):
            return "gate" if one.inputs[0] is op else "up"
        if one.kind == "loss" and "cross_entropy" in one.text:
            return "logits"
    if any(one.kind == "silu_mul" and of_layers(one) for one in makers):
        return "down"
    # The second of two layers: before the third of several, and after a norm, columns are whole.
    before = through([two for one in makers if one.kind == "activation" for two in one.inputs], False)
    if any(one.kind == "linear" and _role(one) in ("up", "gate") for one in before):
        return "down"
    if any(one.kind == "activation" for one in users):
        return "up"
    return ""


def _gated_role(makers: list[Op], users: list[Op]) -> str:
    """Returns the role of a layer around activation(gate) * up, or around a product of an activation with itself."""
    def gate_of(product: Op) -> Op | None:
        kinds = sorted(one.kind for one in product.inputs)
        if product.kind != "mul" or not set(kinds) <= {"activation", "linear"} or "activation" not in kinds:
            return None
        return next(one for one in product.inputs if one.kind == "activation")

    if any(gate_of(one) is not None for one in makers):
        return "down"
    for one in users:
        if gate_of(one) is not None:
            return "up"
        if one.kind == "activation" and any(gate_of(product) is one for product in one.users):
            return "gate" if any(two.kind == "linear" for product in one.users for two in product.inputs) else "up"
    return ""


def _free(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}{count}"
    taken.add(name)
    return name


def make_units(ops: list[Op]) -> list[Unit]:
    """Divides ops in the order of execution into units, and names layers and tables."""
    readers = [_reader(op) for op in ops]  # ids are computed in the unit that looks them up
    places = [_list_of(op) for op in ops]
    numbered = [i for i, place in enumerate(places) if place]
    units: list[Unit] = []
    taken: set[str] = set()
    lists: dict[str, str] = {}
    for i, (op, place) in enumerate(zip(ops, places)):
        if op.kind == "input":
            continue
        owner = readers[i].again or readers[i].repeats
        if owner is not None:
            key, path = owner.unit, ""
        elif op.kind == "loss" and units or _follows_again(op, units):
            key, path = units[-1].name, units[-1].path
        elif place is None and op.kind != "ids" and not op.weights and not op.tables and _latest(op, units) is not None:
            latest = _latest(op, units)
            assert latest is not None
            key, path = latest.name, latest.path
        elif place:
            base = place[2].rsplit(".", 1)[0]
            if base not in lists:
                lists[base] = _free(place[0], set(lists.values()) | taken)
            key, path = f"{lists[base]}{place[1]}", place[2]
        else:
            key, path = ("head" if numbered and i > numbered[0] else "embed" if numbered else "model"), ""
        again = owner is not None or (bool(units) and units[-1].again and key == units[-1].name)
        called = op.repeats is not None and bool(units) and any(
            one is op.repeats or one.repeats is op.repeats for one in units[-1].ops)
        if not units or key not in (units[-1].name, units[-1].key) or units[-1].again != again or called:
            name = key
            if not again and any(unit.name == key for unit in units):
                name = _free(key, {unit.name for unit in units})
            units.append(Unit(name, again=again, path=path, key=key))
        op.unit = units[-1].name
        units[-1].ops.append(op)
    names: dict[str, set[str]] = {}
    for unit in units:
        _name_layers(unit, names.setdefault(unit.name, set()))
    _connect(units)
    return units


def _reader(op: Op) -> Op:
    while op.kind == "ids" and op.users:
        op = op.users[0]
    return op


def _follows_again(op: Op, units: list[Unit]) -> bool:
    """Returns whether the op, which has no weights, reads the tied logits, which the last unit computes."""
    if not units or not units[-1].again or op.weights or op.tables:
        return False
    return any(one in units[-1].ops for one in op.inputs)


def _latest(op: Op, units: list[Unit]) -> Unit | None:
    """Returns the last unit if the op reads a value of it and the unit is of a list of modules."""
    if not units or units[-1].again or not units[-1].path:
        return None
    return units[-1] if any(one.unit == units[-1].name for one in op.inputs) else None


def _name_layers(unit: Unit, taken: set[str]) -> None:
    """Names a unit's layers and tables. `taken`: the names of its calls before."""
    for op in unit.ops:
        if op.again is not None:
            op.names["token"] = op.again.names["token"]
        if op.repeats is not None:
            op.name, op.names = op.repeats.name, op.repeats.names
            continue
        for role in op.tables:
            op.names[role] = _free(f"{role}.weight", taken)
        if op.layer:
            role = _role(op) if op.kind in ("linear", "qkv") else ""
            layer = re.sub(r"\W", "_", role or op.layer)
            layer += "_" if layer in _ROLES and not role else ""  # a module's name, which means nothing to strategies
            op.name = _free(layer, taken)


def _connect(units: list[Unit]) -> None:
    for unit in units:
        own = set(map(id, unit.ops))
        for op in unit.ops:
            for one in op.inputs:
                if id(one) not in own and one.kind != "input" and one not in unit.reads:
                    unit.reads.append(one)
            if any(id(user) not in own for user in op.users) or not op.users:
                unit.gives.append(op)
