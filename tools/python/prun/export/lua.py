"""The plan's text. Equal units that follow each other become a loop; values that are used once are written in place."""
from __future__ import annotations

import re

from .ops import Op
from .units import Unit

_WIDTH = 104  # columns of a line of the plan
_LOCALS = {"qkv": "qkv", "rotary": "turned", "attention": "seen", "linear": "y", "layernorm": "normed", "ids": "ids",
           "rmsnorm": "normed", "activation": "active", "silu_mul": "gated", "add": "mixed", "mul": "product",
           "scale": "scaled", "dropout": "dropped", "embedding": "embedded", "loss": "loss"}

# Lua's keywords, and names that a plan has already.
_NO_LOCALS = {"and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local", "nil",
              "not", "or", "repeat", "return", "then", "true", "until", "while", "prun", "nn", "arg", "batch", "loads", "x", "i"}


def _expression(op: Op, known: dict[int, str]) -> str:
    names = {"layer": f'"{op.name}"', "layer_weight": f'"{op.name}.weight"', "layer_bias": f'"{op.name}.bias"',
              **{role: f'"{name}"' for role, name in op.names.items()}}
    return op.text.format(*[known[id(one)] for one in op.inputs], **names)


def _atom(op: Op, text: str) -> str:
    """Puts a sum in brackets that is written within a product, and an operator of which a method is called."""
    called = op.kind in ("add", "mul", "scale") and any(user.text.startswith("{0}:") for user in op.users)
    return f"({text})" if called or (
        op.kind == "add" and any(user.kind in ("mul", "scale") for user in op.users)) else text


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
        uses = sum(user.text.count(f"{{{i}}}") for user in set(op.users) for i, one in enumerate(user.inputs) if one is op)
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
    balanced = any("loads = loads" in op.text for unit in units for op in unit.ops)
    lines = ["function(batch)", *(["    local loads = {}  -- of the experts"] if balanced else [])]
    names: dict[int, str] = {}
    declared: set[str] = set()
    i = 0
    while i < len(units):
        unit = units[i]
        reads = [names[id(op)] for op in unit.reads]
        gives = _names(unit, units[i + 1:], names)
        bodies = [] if unit.again else _chain(units, i, reads, gives)
        count = _calls(units, i, reads, gives) if unit.again and set(gives) <= declared else _loop_of(bodies)
        target = ", ".join(gives)
        lead = f"{target} = " if set(gives) <= declared else f"local {target} = "
        lead = "return " if i + count == len(units) else lead
        declared |= set(gives)
        if count > 1 and unit.again:
            lines += [f"    for _ = 1, {count} do", f'      {lead}nn.again("{unit.name}", function()',
                      *body_of(unit, "        ", reads), "      end)", "    end"]
        elif count > 1:
            lines += _loop(unit, bodies[:count], lead)
        else:
            lines.append(f'    {lead}nn.{"again" if unit.again else "unit"}("{unit.name}", function()')
            lines += [*body_of(unit, "      ", reads), "    end)"]
        for one in units[i:i + count]:
            names.update(zip(map(id, one.gives), gives))
        i += count
    return "\n".join([*lines, "  end"])


def _loop(unit: Unit, bodies: list[list[str]], lead: str) -> list[str]:
    """Returns a loop over units with these bodies; if they differ, the body is chosen by the number of the unit."""
    stem, number = re.fullmatch(r"(.*?)(\d+)", unit.name).groups()  # type: ignore[union-attr]
    first, period = int(number), _period(bodies)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in range(period):
        groups.setdefault(tuple(bodies[i]), []).append((first + i) % period)
    lines = [f"    for i = {first}, {first + len(bodies) - 1} do" + (f"  -- {unit.path}" if unit.path else "")]
    by_size = sorted(groups.items(), key=lambda group: len(group[1]))
    for at, (body, places) in enumerate(by_size):
        indent = "      " if period == 1 else "        "
        if period > 1:
            chosen = " or ".join(f"i % {period} == {place}" for place in sorted(places))
            lines.append("      else" if at == len(by_size) - 1 else f"      {'elseif' if at else 'if'} {chosen} then")
        lines.append(f'{indent}{lead}nn.unit("{stem}" .. i, function()')
        lines += [f"{indent}  {line}" for line in body]
        lines.append(f"{indent}end)")
    return [*lines, *(["      end"] if period > 1 else []), "    end"]


def _period(bodies: list[list[str]]) -> int:
    """Returns after how many units the bodies repeat; their number if they do not."""
    return next((period for period in range(1, len(bodies))
                 if all(bodies[i] == bodies[i - period] for i in range(period, len(bodies)))), len(bodies))


def _loop_of(bodies: list[list[str]]) -> int:
    """Returns how many units the loop has that begins with the first of these bodies; 1 if there is no loop."""
    if not bodies:
        return 1
    runs = 1 + sum(one != two for one, two in zip(bodies, bodies[1:]))
    different = len({tuple(body) for body in bodies})
    if different > 1 and runs > different and _period(bodies) < len(bodies):
        return len(bodies)
    return next((i for i, body in enumerate(bodies) if body != bodies[0]), len(bodies))


def _calls(units: list[Unit], start: int, reads: list[str], gives: list[str]) -> int:
    """Returns how many calls of one unit follow each other from `start` on, each of which reads the results of the one
    before."""
    body, count = body_of(units[start], "", reads), 1
    while reads == gives and start + count < len(units) - 1:
        one, before = units[start + count], units[start + count - 1]
        here = dict(zip(map(id, before.gives), gives))
        if not one.again or one.name != before.name or [here.get(id(op)) for op in one.reads] != reads or (
                body_of(one, "", reads) != body):
            break
        count += 1
    return count


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


def _chain(units: list[Unit], start: int, reads: list[str], gives: list[str]) -> list[list[str]]:
    """Returns the bodies of units from `start` on that are numbered in order and pass on their results to the next."""
    bodies = [body_of(units[start], "", reads)]
    while start + len(bodies) < len(units):
        one, before = units[start + len(bodies)], units[start + len(bodies) - 1]
        stem, number = re.fullmatch(r"(.*?)(\d*)", one.name).groups()  # type: ignore[union-attr]
        stem_before, number_before = re.fullmatch(r"(.*?)(\d*)", before.name).groups()  # type: ignore[union-attr]
        if stem != stem_before or not number or not number_before or int(number) != int(number_before) + 1:
            break
        if one.again or one is units[-1] or len(one.gives) != len(gives) or reads != gives:
            break
        here = dict(zip(map(id, before.gives), gives))
        if any(id(op) not in here for op in one.reads):
            break
        bodies.append(body_of(one, "", [here[id(op)] for op in one.reads]))
    return bodies
