"""Rejects derivatives of the user's own, which a trace omits: hooks of tensors and parameters, and autograd functions.

torch.export records the forward ops only. PyTorch differentiates the module while it is traced, though, so the graph of
the results' derivatives names each autograd function.
"""
from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .errors import ExportError

_OWN = "a plan has the derivatives of its ops"


def check_parameter_hooks(module: nn.Module) -> None:
    """Raises if a parameter has hooks on its gradient."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ExportError(f"the parameter {name} has hooks on its gradient, which a plan would omit",
                              hint="remove them before the export (hook handles have .remove())")


def _own_function(result: Any) -> type | None:
    """Returns an autograd function outside PyTorch that a result is computed by."""
    flat, _ = torch.utils._pytree.tree_flatten(result)
    todo = [one.grad_fn for one in flat if isinstance(one, Tensor) and one.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        forward = getattr(node, "_forward_cls", None)
        if isinstance(forward, type) and not forward.__module__.startswith("torch."):
            return forward
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
    return None


def _refuse_function(module: nn.Module, args: Any, result: Any) -> None:
    found = _own_function(result)
    if found is None:
        return
    backward: Any = getattr(found, "backward", found)
    try:
        file, line = inspect.getsourcefile(backward) or "", inspect.getsourcelines(backward)[1]
    except (OSError, TypeError):
        file, line = "", 0
    raise ExportError(f"the autograd function {found.__name__} has a derivative of its own", file=file, line=line,
                      hint=f"{_OWN}: write its forward with PyTorch's functions")


def _refuse_hook(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
    frame = next((one for one in inspect.stack()[1:] if "/torch/" not in one.filename), None)
    raise ExportError("a hook on a tensor's gradient, which a plan would omit", file=frame.filename if frame else "",
                      line=frame.lineno if frame else 0, op="register_hook", hint=f"{_OWN}: remove the hook")


@contextmanager
def watched(module: nn.Module) -> Iterator[None]:
    """Raises ExportError from a trace of the module if its forward has derivatives of its own."""
    before = Tensor.register_hook
    handle = module.register_forward_hook(_refuse_function)
    Tensor.register_hook = _refuse_hook  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Tensor.register_hook = before  # type: ignore[method-assign]
        handle.remove()
