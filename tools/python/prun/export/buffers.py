"""Buffers that a module changes: the running statistics of nn.BatchNorm, which a plan has, too. Others are refused."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn.modules.batchnorm import _BatchNorm

from .trace import Traced, aten, modules_of, refuse

# Forms of a batch norm in programs with and without in-place ops, in train and in eval mode.
BATCH_NORMS = {
    aten.batch_norm.default, aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_no_training.default,
    aten.native_batch_norm.default,
}
_COUNT = "num_batches_tracked"


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers of the module's batch norms by name."""
    return {f"{path}.{name}".lstrip("."): buffer for path, one in module.named_modules() if isinstance(one, _BatchNorm)
            for name, buffer in one.named_buffers(recurse=False)}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns what a plan trains: parameters, tied ones under each of their names, and buffers of batch norms."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **buffers_of(module)}


@contextmanager
def traceable(module: nn.Module) -> Iterator[None]:
    """Gives batch norms with momentum = None a number, because its branch depends on the number of batches."""
    changed = [one for one in module.modules() if isinstance(one, _BatchNorm) and one.momentum is None]
    for one in changed:
        one.momentum = 0.5
    try:
        yield
    finally:
        for one in changed:
            one.momentum = None


def drop_counts(program: torch.export.ExportedProgram, module: nn.Module) -> None:
    """Removes the counts of batches, which prun's batch norm counts itself."""
    own = buffers_of(module)
    counts = {spec.arg.name for spec in program.graph_signature.input_specs
              if spec.target in own and str(spec.target).endswith(_COUNT)}
    dropped = 0
    for node in reversed(list(program.graph.nodes)):
        of = node
        while of.target is aten.add_.Tensor and isinstance(of.args[0], Node):
            of = of.args[0]
        if of is not node and of.name in counts and not node.users:
            program.graph.erase_node(node)
            dropped += 1
    if dropped:
        program.graph_module.recompile()


def batch_norm_of(traced: Traced, node: Node) -> tuple[str, _BatchNorm]:
    """Returns the module that a batch norm was traced in, and its path."""
    for path in reversed(modules_of(node)):
        module = traced.module.get_submodule(path)
        if isinstance(module, _BatchNorm):
            return path, module
    if isinstance(traced.module, _BatchNorm):
        return "", traced.module
    raise refuse(node, "a batch norm that is no module of its own",
                 "use nn.BatchNorm2d: prun keeps its running statistics under the module's names")
