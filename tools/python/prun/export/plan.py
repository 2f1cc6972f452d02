"""The plan around the model: arguments, mesh, data, strategies; and checks of the whole."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .builder import Builder
from .errors import ExportError
from .lua import model_text
from .ops import Part, Weight
from .template import Template
from .trace import refuse
from .units import Unit


@contextmanager
def deep_recursion(nodes: int) -> Iterator[None]:
    """Allows rules to recurse through a program of that many nodes."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 1000 + 8 * nodes))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def frozen_names(builder: Builder, weights: dict[str, Weight]) -> list[str]:
    """Returns the plan's tensors that are made of frozen parameters (requires_grad=False)."""
    frozen = {name for name, tensor in builder.traced.tensors.items()
              if not tensor.requires_grad and name not in builder.traced.buffers}
    names = []
    for name, weight in weights.items():
        held = [part.parameter for part in weight.parts if part.parameter in frozen]
        if held and len(held) < len(weight.parts):
            raise ExportError(f"{held[0]} is frozen (requires_grad=False), and {name} of the plan has trained parameters, "
                              "too", hint="freeze all or none of the parts of a layer, such as queries, keys and values")
        names += [name] if held or weight.constant is not None else []
    return names


def template(builder: Builder, units: list[Unit], weights: dict[str, Weight], name: str, file: str) -> Template:
    """Returns the plan's parts."""
    elements = sum(tensor.numel() for tensor in {id(t): t for name, t in builder.traced.tensors.items()
                                                      if name not in builder.traced.buffers}.values())
    head = "\n-- ".join([f"-- {' '.join(name.split())}, exported from PyTorch ({elements:,} parameters).", *builder.notes])
    return Template(head=head, model=model_text(units), file=file, data=_data(builder, ""),
                    eval_data=_data(builder, "eval_"), has_targets="tokens" not in builder.inputs_used,
                    frozen="|".join(frozen_names(builder, weights)),
                    arrays=sorted(builder.inputs_used) if builder.named else [],
                    dtype=_dtype(builder))


def _dtype(builder: Builder) -> str:
    return "f64" if next(iter(builder.traced.tensors.values())).dtype == torch.float64 else "f32"


def _data(builder: Builder, prefix: str) -> str:
    """Returns the data as Lua. `prefix`: of the arguments' names."""
    if builder.named:
        numbers = {builder.traced.inputs[node] for node in builder.masks}
        files = ", ".join(f'{name} = {{ arg.{prefix}{name}, as = "numbers" }}' if name in numbers
                          else f"{name} = arg.{prefix}{name}" for name in sorted(builder.inputs_used))
        return f"prun.data.arrays {{ inputs = {{ {files} }}, batch = arg.batch }}"
    if "tokens" in builder.inputs_used:
        return (f"prun.data.tokens {{ path = arg.{prefix}file, batch = arg.batch, context = {builder.context}, "
                f"vocab = {builder.vocab}, order = \"epochs\" }}")
    return f"prun.data.arrays {{ x = arg.{prefix}file, y = arg.{prefix}targets, batch = arg.batch }}"


def check_inputs(builder: Builder, example: Any, of_files: bool) -> None:
    """Raises if the loss does not depend on an input, or if the example's targets are not what a plan `of_files` reads."""
    used = set(builder.inputs_used.values())
    for node, name in builder.traced.inputs.items():
        if node not in used and any(user.op != "output" for user in node.users) and any(
                user not in builder.traced.constants for user in node.users):
            raise refuse(next(iter(node.users), None), f"the input {name} is used in a way that a plan cannot say",
                         "a plan's model has batch.tokens and batch.targets, or batch.x and batch.y")
    _check_targets(builder, _example_values(builder, example) if of_files else None)


def _check_targets(builder: Builder, values: dict[str, Tensor] | None) -> None:
    """Raises if the targets are not what a plan reads; notes if they are not the next tokens. `values`: of the example, if
    the plan reads them from a token file."""
    if builder.named:
        return
    tokens, shifted = builder.inputs_used.get("tokens"), builder.inputs_used.get("shifted")
    if len(builder.cut) == 1:
        raise ExportError("ids and targets that are of different tokens",
                          hint="the targets of ids[:, :-1] are ids[:, 1:]")
    later = any(op.kind == "attention" and "causal = false" in op.text for op in builder.ops)
    if later and shifted is not None and not builder.cut:
        raise ExportError("attention to later tokens, which are the targets", hint="use causal attention")
    if values is None:
        return
    if tokens is not None and shifted is not None and tokens is not shifted:
        a, b = values.get(tokens.name), values.get(shifted.name)
        if a is None or b is None or not torch.equal(a.long(), b.long()):
            raise ExportError(f"the example's {shifted.name} differ from its {tokens.name}",
                              hint="this plan predicts each next token of its files: pass the same ids twice")
    targets = builder.inputs_used.get("targets")
    given = None if targets is None else values.get(targets.name)
    ids = None if tokens is None else values.get(tokens.name)
    if given is not None and ids is not None and given.shape == ids.shape and given.dim() == 2 and not torch.equal(
            given[:, :-1], ids[:, 1:]):
        if torch.equal(given, ids):
            raise ExportError(f"the example's {targets.name} are its {tokens.name}",  # type: ignore[union-attr]
                              hint="a plan predicts each next token: pass them shifted by one, or shift in forward")
        builder.notes.append("The example's targets are not its next tokens; the plan's are.")
    if tokens is not None and given is not None and not given.is_floating_point() and bool((given < 0).any()):
        raise ExportError("the example has ignored targets (below 0)",
                          hint="this plan predicts each next token of its files, which have none: pass whole targets")


def _example_values(builder: Builder, example: Any) -> dict[str, Tensor]:
    flat, _ = torch.utils._pytree.tree_flatten(
        ((), dict(example)) if isinstance(example, dict) else
        ((example,) if isinstance(example, Tensor) else tuple(example), {}))
    names = builder.traced.program.graph_signature.user_inputs
    return {str(name): value for name, value in zip(names, flat) if isinstance(value, Tensor)}


def check_weights(builder: Builder, weights: dict[str, Weight]) -> None:
    """Raises unless each element of each trained parameter is in the plan once. Rows that no lookup reads may be missing."""
    parts: dict[str, list[Part]] = {}
    for weight in weights.values():
        for part in weight.parts:
            parts.setdefault(part.parameter, []).append(part)
    for name, several in parts.items():
        if len(several) == 1 and several[0].rows is None and several[0].columns is None:
            continue
        uses = torch.zeros(builder.traced.tensors[name].shape, dtype=torch.int32)
        for part in several:
            part.put(part.of(uses) + 1, uses)
        node = next(node for node, known in builder.traced.parameters.items() if known == name)
        last = max(node.users, key=lambda user: builder.traced.order[user])
        if bool((uses > 1).any()):
            times = {2: "twice", 3: "three times"}.get(int(uses.max()), "several times")
            raise refuse(last, f"the weight {name} is used {times}",
                         "give each layer weights of its own; only tokens and logits may share one")
        if bool((uses == 0).any()) and all(part.lookup for part in several):
            builder.notes.append(f"Rows of {name} that the module does not look up keep their values.")
        elif bool((uses == 0).any()):
            raise refuse(last, f"{int((uses == 0).sum())} elements of the weight {name} are not used",
                         "a plan trains whole weights: remove what is not used")
