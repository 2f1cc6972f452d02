"""prun.export: a PyTorch module with its loss becomes a readable plan and its weights.

    exported = prun.export(module, (tokens, targets))
    exported.save("gpt")                  # gpt.lua and gpt.weights/
    exported.load("runs/gpt")             # trained weights of a checkpoint, into the module

A pipeline of small steps: capture.py traces the module, trace.py folds constants, layout.py puts rows in one order,
rules/ recognise layers from the loss backwards, units.py names units and layers after the module tree, lua.py writes
the model, template.py the plan around it, weights.py its weights.
A construct that no plan can express raises ExportError with the Python line, the op, and the likely way round.
"""
from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import whole_tensors
from ..errors import CheckpointError
from . import capture, description, plan, prefix
from .buffers import tensors_of
from .builder import Builder
from .errors import ExportError
from .layout import in_order
from .ops import Weight, in_order_of_execution
from .rules import RULES, contrastive, losses
from .template import EXPORTED, Choices, Template
from .trace import Traced
from .units import make_units
from .weights import weights_of, write

__all__ = ["ExportError", "Exported", "export"]


@dataclasses.dataclass
class Exported:
    """A plan and its weights.

    `template`: the plan's parts. `weights`: the plan's tensors by name, each made of parameters of the module.
    `context`: tokens in a sample, 0 if samples are numbers. `vocab`: number of different tokens. `notes`: what trains
    differently. `inputs`: arguments of the module by the names of the plan's inputs. `arguments`: all of them in their
    order. `shifted`: the plan's targets are the next ones of the module's. `numbers`: arguments of integers that the plan
    reads as numbers. `pairs`: the loss compares as many samples as the example has.
    """

    module: nn.Module
    template: Template
    weights: dict[str, Weight]
    context: int
    vocab: int
    notes: list[str]
    inputs: dict[str, str]
    arguments: list[str]
    shifted: bool
    numbers: set[str]
    pairs: bool

    @property
    def plan(self) -> str:
        """The plan's Lua text."""
        return self.template.text("model.weights", EXPORTED)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the plan's tensors, weights of linear layers as [in, out]. Some share memory with the module's."""
        own = tensors_of(self.module)
        return {name: weight.join({key: value.detach() for key, value in own.items()})
                for name, weight in self.weights.items()}

    def save(self, path: str | os.PathLike[str], choices: Choices = EXPORTED) -> pathlib.Path:
        """Writes `path`.lua and the folder `path`.weights; returns the path of the plan. The folder has the weights, and
        their names in the module (prun.yaml). Raises CheckpointError if a file cannot be written.

        `choices`: mesh, strategies, optimizer and evaluation, if they are not those of `plan`.
        """
        base = pathlib.Path(path)
        base = base.with_suffix("") if base.suffix == ".lua" else base
        folder = base.with_name(base.name + ".weights")
        path = base.with_name(base.name + ".lua")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(self.tensors(), folder / "model.safetensors")
            if names := self.description():
                (folder / "prun.yaml").write_text(names, encoding="utf-8")
            path.write_text(self.template.text(str(folder), choices), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
        return path

    def load(self, checkpoint: str | os.PathLike[str]) -> None:
        """Writes the weights of the newest checkpoint in a folder, which this plan wrote, into the module's parameters.

        Raises CheckpointError if the folder has none, ExportError if it is of another plan.
        """
        self.load_tensors(whole_tensors(checkpoint))

    def description(self) -> str:
        """Returns the module's names of the weights, for `prun ckpt export --format torch --description`.

        "" if the plan's weights are parts of a parameter in a way that a description cannot express.
        """
        return description.text(self.weights, tensors_of(self.module),
                                type(self.module).__name__)

    def load_tensors(self, trained: Mapping[str, Tensor]) -> None:
        """Writes the plan's trained tensors into the module's parameters.

        `trained`: all of `weights`, by name, in the plan's layout. Raises ExportError if one is missing or has another
        shape; the module is then unchanged.
        """
        own = tensors_of(self.module)
        with torch.no_grad():
            for name, weight in self.weights.items():
                if name not in trained:
                    raise ExportError(f"the weights have no {name}", hint="they are of another plan")
                pieces = [part.of(own[part.parameter]).shape for part in weight.parts]
                shape = (*pieces[0][:-1], sum(piece[-1] for piece in pieces)) if weight.constant is None else (
                    *weight.constant.shape,)
                if trained[name].shape != shape:
                    raise ExportError(f"{name} is {list(trained[name].shape)}, and the plan's is {list(shape)}",
                                      hint="the weights are of another plan")
            for name, weight in self.weights.items():
                weight.restore(trained[name], own)  # type: ignore[arg-type]


_SAMPLES = 5  # an example of one sample is repeated: its size of 1 would look like that of other dims


def _several(example: Any) -> Any:
    """Repeats an example of one sample; returns any other example as it is."""
    tensors = [one for one in torch.utils._pytree.tree_leaves(example) if isinstance(one, Tensor)]
    if not tensors or any(one.dim() == 0 or one.shape[0] != 1 for one in tensors):
        return example
    return torch.utils._pytree.tree_map_only(Tensor, lambda one: one.repeat(_SAMPLES, *[1] * (one.dim() - 1)), example)


def _recognised(module: nn.Module, example: Any, divided: set[Any], whole: bool = False
                ) -> tuple[Builder, ExportError | None]:
    """Returns the ops of the plan, and the error if a rule refuses one. An op that no rule recognises is replaced by its
    parts, and added to `divided`. `whole`: see Builder."""
    first: ExportError | None = None
    while True:
        builder, error = _attempt(module, example, divided, whole)
        if error is None or not capture.can_divide(error.unknown) or error.unknown in divided:
            same = first is not None and error is not None and (first.file, first.line) == (error.file, error.line)
            return builder, first if same else error
        first = error if first is None or (first.file, first.line) != (error.file, error.line) else first
        divided.add(error.unknown)


def _attempt(module: nn.Module, example: Any, divided: set[Any], whole: bool) -> tuple[Builder, ExportError | None]:
    traced = Traced(capture.trace(module, example, divided), module)
    capture.check_effects(traced)
    traced = in_order(traced, module)
    loss = capture.find_loss(traced)
    builder = Builder(traced, RULES)
    builder.whole = whole
    try:
        with plan.deep_recursion(len(traced.nodes)):
            losses.loss(builder, loss)
    except ExportError as error:
        return builder, error
    return builder, None


def export(module: nn.Module, example: Any, *, data: str = "train.bin", name: str = "", of_files: bool = True) -> Exported:
    """Returns the plan that trains a module as PyTorch does, and its weights.

    `module`: takes a batch and returns the mean loss, alone or among other results; transformers' models do if they are
    given labels. It is traced in train mode and not changed. `example`: a tensor, a tuple of arguments or a dict of
    keyword arguments, [batch, tokens] for ids; its shapes determine the context of the plan. `data`: the token file
    that the plan reads by default. `name`: of the module, for the plan's first line. `of_files`: a plan of tokens reads a
    token file, so that the example's targets must be the next tokens.

    Raises ExportError for each construct that a plan cannot express, with the file and line of the Python that does it.
    """
    capture.check_module(module)
    example = _several(example)
    divided: set[object] = set()
    builder, error = _recognised(module, example, divided)
    shorter = prefix.of_whole_samples(module, builder, example, error)
    if shorter is not None:
        example = shorter
        builder, error = _recognised(module, example, divided, whole=True)
    if error:
        raise error
    traced = builder.traced
    capture.check_modes(module, example, traced, divided)
    plan.check_inputs(builder, example, of_files)
    units = make_units(in_order_of_execution(builder.ops, traced.order))
    weights = weights_of(units)
    plan.check_weights(builder, weights)
    template = plan.template(builder, units, weights, name or type(module).__name__, data)
    names = builder.traced.inputs
    inputs = {name.replace("shifted", "targets"): names[node] for name, node in builder.inputs_used.items()}
    inputs = {name: inputs[name] for name in sorted(inputs)}
    return Exported(module, template, weights, builder.context, builder.vocab, builder.notes, inputs,
                    list(names.values()), builder.shifted or "shifted" in builder.inputs_used,
                    {names[node] for node in builder.masks}, contrastive.NOTE in builder.notes)
