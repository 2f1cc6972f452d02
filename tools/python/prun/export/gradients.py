"""Rejects derivatives of the user's own, which a trace omits: hooks of tensors and parameters, and autograd functions.

torch.export records the forward ops only. PyTorch differentiates the module while it is traced, though, so the graph of
the results' derivatives names each autograd function. One whose backward is the derivative of its forward is no
obstacle, such as Bloom's GELU.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
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


def _own_functions(result: Any) -> set[type]:
    """Returns the autograd functions outside PyTorch that a result is computed by."""
    flat, _ = torch.utils._pytree.tree_flatten(result)
    todo = [one.grad_fn for one in flat if isinstance(one, Tensor) and one.grad_fn is not None]
    seen, found = set(todo), set()
    while todo:
        node = todo.pop()
        forward = getattr(node, "_forward_cls", None)
        if isinstance(forward, type) and not forward.__module__.startswith("torch."):
            found.add(forward)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
    return found


class _Context:
    """The context of an autograd function's forward, which stores nothing for backward."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _derivative_of(compute: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    """Returns the gradients of a weighted sum of a function's results by its tensors."""
    generator = torch.Generator().manual_seed(1)
    values = [2 * torch.randn(one.shape, generator=generator, dtype=torch.float64) if isinstance(one, Tensor) else one
              for one in args]
    inputs = [one.requires_grad_() for one in values if isinstance(one, Tensor)]
    with torch.enable_grad():
        result = compute(*values)
    results = [one for one in (result if isinstance(result, tuple) else (result,)) if one.requires_grad]
    weights = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in results]
    return list(torch.autograd.grad(results, inputs, weights))


def _derives_forward(function: Any, args: Sequence[Any]) -> bool:
    """Returns whether backward of an autograd function is the derivative of its forward."""
    with_context = function.setup_context is torch.autograd.Function.setup_context
    try:
        own = _derivative_of(function.apply, args)
        plain = _derivative_of(lambda *given: function.forward(*[_Context()] * with_context, *given), args)
    except Exception:  # whatever they raise, the exporter cannot compare them
        return False
    return all(torch.allclose(one, two, rtol=1e-5, atol=1e-6) for one, two in zip(own, plain))


def _refuse(found: Any) -> None:
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
    before, apply = Tensor.register_hook, torch.autograd.Function.__dict__["apply"]
    calls: dict[type, Sequence[Any]] = {}
    found: set[type] = set()

    def noted(function: type[Any], /, *args: Any, **kwargs: Any) -> Any:
        calls.setdefault(function, args)
        return apply.__get__(None, function)(*args, **kwargs)

    def after(module: nn.Module, args: Any, result: Any) -> None:
        found.update(_own_functions(result))

    handle = module.register_forward_hook(after)
    Tensor.register_hook = _refuse_hook  # type: ignore[assignment, method-assign]
    torch.autograd.Function.apply = classmethod(noted)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply
        Tensor.register_hook = before  # type: ignore[method-assign]
        handle.remove()
    for function in sorted(found, key=lambda one: one.__name__):
        if not _derives_forward(function, calls.get(function, ())):
            _refuse(function)
