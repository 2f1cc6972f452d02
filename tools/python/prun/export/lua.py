"""The plan's text. Equal units that follow each other become a loop; values that are used once are written in place."""
from __future__ import annotations

import re

from .ops import Op
from .units import Unit

_WIDTH = 104  # columns of a line of the plan
_LOCALS = {"qkv": "qkv", "rotary": "turned", "attention": "seen", "linear": "y", "layernorm": "normed",
           "rmsnorm": "normed", "activation": "active", "silu_mul": "gated", "add": "mixed", "mul": "product",
           "scale": "scaled", "dropout": "dropped", "embedding": "embedded", "loss": "loss"}

# Lua's keywords, and names that a plan has already.
_NO_LOCALS = {"and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local", "nil",
              "not", "or", "repeat", "return", "then", "true", "until", "while", "prun", "nn", "arg", "batch", "x", "i"}


def _expression(op: Op, known: dict[int, str]) -> str:
    names = {"layer": f'"{op.name}"', **{role: f'"{name}"' for role, name in op.names.items()}}
    return op.text.format(*[known[id(one)] for one in op.inputs], **names)


def _atom(op: Op, text: str) -> str:
    """Puts a sum in brackets that is written within a product."""
    return f"({text})" if op.kind in ("add",) and any(user.kind in ("mul", "scale") for user in op.users) else text


def body_of(unit: Unit, indent: str, reads: list[str]) -> list[str]:
    """Returns the lines of a unit's function. `reads`: the names of the values from other units."""
    lines: list[str] = []
    known: dict[int, str] = dict(zip(map(id, unit.reads), reads))
    taken = set(reads)
    own = set(map(id, unit.ops))
    for op in unit.ops:
        for one in op.inputs:
            if one.kind == "input":
                known[id(one)] = one.text
        text = _expression(op, known)
        last = len(unit.gives) == 1 and op is unit.gives[0] and op is unit.ops[-1]
        if last:
            lines.append(f"{indent}return {text}")
            continue
        uses = sum(one is op for user in op.users for one in user.inputs)
        inline = uses == 1 and op not in unit.gives and id(op.users[0]) in own and len(text) < _WIDTH - 40
        if inline and op.kind not in ("qkv", "add"):
            known[id(op)] = _atom(op, text)
            continue
        name = base = _LOCALS.get(op.kind, "y") if op.kind != "linear" or not op.name else re.sub(r"\d+$", "", op.name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name) or name in _NO_LOCALS:
            name = base = "y"
        count = 1
        while name in taken:
            count += 1
            name = f"{base}{count}"
        taken.add(name)
        known[id(op)] = name
        lines.append(f"{indent}local {name} = {text}")
    if not lines or not lines[-1].lstrip().startswith("return"):
        lines.append(f"{indent}return {', '.join(known[id(op)] for op in unit.gives)}")
    return lines


def model_text(units: list[Unit]) -> str:
    """Returns the plan's model: a Lua function from a batch to the loss."""
    lines = ["function(batch)"]
    names: dict[int, str] = {}
    declared: set[str] = set()
    i = 0
    while i < len(units):
        unit = units[i]
        reads = [names[id(op)] for op in unit.reads]
        gives = _names(unit, units[i + 1:], names)
        found = re.fullmatch(r"(.*?)(\d+)", unit.name)
        count = _repeats(units, i, reads, gives) if found and not unit.again else 1
        call = f'nn.{"again" if unit.again else "unit"}("{unit.name}"'
        indent = "    "
        end = i + count == len(units)
        if count > 1 and found:
            first = int(found.group(2))
            lines.append(f"    for i = {first}, {first + count - 1} do" + (f"  -- {unit.path}" if unit.path else ""))
            call, indent = f'nn.unit("{found.group(1)}" .. i', "      "
        target = ", ".join(gives)
        if end:
            lead = "return "
        elif set(gives) <= declared:
            lead = f"{target} = "
        else:
            lead = f"local {target} = "
        declared |= set(gives)
        lines.append(f"{indent}{lead}{call}, function()")
        lines += body_of(unit, indent + "  ", reads)
        lines.append(f"{indent}end)")
        if count > 1:
            lines.append("    end")
        for one in units[i:i + count]:
            names.update(zip(map(id, one.gives), gives))
        i += count
    return "\n".join([*lines, "  end"])


def _names(unit: Unit, later: list[Unit], names: dict[int, str]) -> list[str]:
    """Returns names for the results of a unit: x if it is the only value, or one that is not read any more."""
    needed = {names[id(op)] for one in later for op in one.reads if id(op) in names}
    result: list[str] = []
    for _ in unit.gives:
        name, count = "x", 1
        while name in needed or name in result:
            count += 1
            name = f"x{count}"
        result.append(name)
    return result


def _repeats(units: list[Unit], start: int, reads: list[str], gives: list[str]) -> int:
    """Returns how many units from `start` on have equal bodies and pass on their results to the next."""
    body = body_of(units[start], "", reads)
    count = 1
    while start + count < len(units):
        one, before = units[start + count], units[start + count - 1]
        stem, number = re.fullmatch(r"(.*?)(\d*)", one.name).groups()  # type: ignore[union-attr]
        stem_before, number_before = re.fullmatch(r"(.*?)(\d*)", before.name).groups()  # type: ignore[union-attr]
        if stem != stem_before or not number or int(number) != int(number_before) + 1 or one.again:
            break
        if start + count == len(units) - 1 or len(one.gives) != len(gives):
            break
        here = dict(zip(map(id, before.gives), gives))
        if any(id(op) not in here for op in one.reads):
            break
        if reads != gives or body_of(one, "", [here[id(op)] for op in one.reads]) != body:
            break
        count += 1
    return count
