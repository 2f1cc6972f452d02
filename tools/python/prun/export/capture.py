"""Traces a module with torch.export and rejects constructs that the trace would omit: hooks, buffers that change, mixed modes,
parameters of other types or devices, outputs with several losses.
"""
from __future__ import annotations

import inspect
import io
import logging
import re
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import default_decompositions
from torch.fx import Node

from .buffers import BATCH_NORMS, drop_counts, traceable
from .errors import ExportError
from .gradients import check_parameter_hooks, watched
from .hints import EXPERTS
from .layout import in_order
from .trace import MOVEMENT, RESHAPES, Traced, aten, is_getitem, place_of, refuse, shape_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_RECORDERS = ("transformers.utils.output_capturing",)  # their hooks store a layer's result and change nothing


def _line_of(module: nn.Module) -> tuple[str, int]:
    """Returns where a module's class defines forward."""
    try:
        forward = inspect.unwrap(type(module).forward)
        return inspect.getsourcefile(forward) or "", inspect.getsourcelines(forward)[1]
    except (OSError, TypeError):
        return "", 0


def _is_normed_convolution(module: nn.Module) -> bool:
    """Returns whether a module is a convolution with weight_norm, which a plan computes."""
    convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d)
    parametrizations: Any = module.parametrizations
    return convolution and all(type(one).__name__ == "_WeightNorm" for kind in parametrizations.values() for one in kind)


def check_module(module: nn.Module) -> None:
    """Raises if a plan could not train the module as PyTorch does."""
    if not isinstance(module, nn.Module):
        raise ExportError(f"the module is {module.__name__ if isinstance(module, type) else type(module).__name__}",
                          hint="pass an nn.Module, such as Model(), whose forward returns the loss")
    file, line = _line_of(module)

    def fail(problem: str, hint: str) -> ExportError:
        return ExportError(problem, file=file, line=line, hint=hint)

    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise fail(f"{type(module).__name__} around the module", "pass module.module: prun makes ranks itself")
    for path, one in module.named_modules():
        name = path or type(one).__name__
        for kind in _HOOKS:
            if any(getattr(hook, "__module__", "") not in _RECORDERS for hook in getattr(one, kind, {}).values()):
                raise fail(f"{name} has {kind.strip('_').replace('_', ' ')}, which a plan would omit",
                           "remove them before the export (hook handles have .remove())")
        if hasattr(one, "parametrizations") and not _is_normed_convolution(one):
            raise fail(f"{name} has parametrizations (weight_norm, spectral_norm, ...)",
                       "remove them with torch.nn.utils.parametrize.remove_parametrizations")
    seen = trained = False
    for name, parameter in module.named_parameters():
        seen = True
        if parameter.device.type != "cpu":
            raise fail(f"the parameter {name} is on {parameter.device}", "move the module with module.cpu()")
        if parameter.dtype not in (torch.float32, torch.float64):
            raise fail(f"the parameter {name} is {str(parameter.dtype).removeprefix('torch.')}",
                       'convert it with module.float(); the plan\'s dtype = "bf16" trains in bf16 with f32 weights')
        trained = trained or parameter.requires_grad
    if seen and not trained:
        raise fail("all parameters are frozen (requires_grad=False)", "there is nothing to train")
    if not seen:
        raise fail("the module has no parameters", "")
    if len({parameter.dtype for parameter in module.parameters()}) > 1:
        raise fail("parameters of several types", "convert all of them with module.float() or module.double()")
    check_parameter_hooks(module)
    modes = {one.training for one in module.modules() if any(True for _ in one.parameters()) or hasattr(one, "p")}
    if len(modes) > 1:
        odd = next(path for path, one in module.named_modules() if one.training != module.training)
        raise fail(f"{odd} is in {'train' if not module.training else 'eval'} mode and the module is not",
                   "call module.train(); to train without dropout set its p to 0")


@contextmanager
def mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Sets train or eval mode; restores every submodule's own after that, and the attributes that forward set.

    A trace would leave tensors without data in these attributes, and the next one would fail.
    """
    before = [(one, one.training, dict(vars(one))) for one in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for one, was, attributes in before:
            for name in [name for name, value in vars(one).items() if isinstance(value, Tensor)]:
                if name in attributes:
                    setattr(one, name, attributes[name])
                else:
                    delattr(one, name)
            one.training = was


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of forward."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, Sequence) and not isinstance(example, str):
        return tuple(example), {}
    raise ExportError(f"the example is {type(example).__name__}",
                      hint="pass a tensor, a tuple of arguments, or a dict of keyword arguments")


def _check_example(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    file, line = _line_of(module)
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ExportError(f"the example does not fit forward: {error}", file=file, line=line,
                          hint="the example has the arguments of module(...) as it is called in training") from None
    for value in [*args, *kwargs.values()]:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            raise ExportError(f"a tensor of the example is on {value.device}", file=file, line=line,
                              hint="move it with .cpu()")


def _users_frame(error: BaseException) -> tuple[str, int]:
    """Returns the last line outside PyTorch of a failure."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "/torch/" not in one.filename
              and "/prun/export/" not in one.filename]
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)


def _is_in_place(node: Node) -> bool:
    name = getattr(getattr(node.target, "overloadpacket", node.target), "__name__", "")
    return node.op == "call_function" and name.endswith("_") and not name.endswith("__")


def _check_in_place(node: Node, kinds: Mapping[str, str], constant: set[Node]) -> None:
    """Raises if the node changes a buffer, a parameter or an input.

    A buffer may take a value that no input changes, as LongRoPE's frequencies do: it is the same in each step.
    """
    if not _is_in_place(node) or (node.target is torch.ops.aten.copy_.default and constant.issuperset(node.args[:2])):
        return
    changed = node.args[0]
    while isinstance(changed, Node) and changed.op == "call_function" and changed.target in MOVEMENT:
        changed = changed.args[0]
    if isinstance(changed, Node) and changed.name in kinds:
        what = {"BUFFER": "a buffer", "PARAMETER": "a parameter"}.get(kinds[changed.name], "an input")
        raise refuse(node, f"forward changes {what}, {changed.name}", "a plan trains parameters and keeps only the "
                     "running statistics of nn.BatchNorm between steps: counters and caches are not supported")


def _dropout_of_a_result(node: Node) -> None:
    """Replaces in-place dropout by dropout, which decompositions keep as one op, if nothing else reads its input."""
    changed = node.args[0]
    while isinstance(changed, Node) and changed.op == "call_function" and len(changed.users) == 1:
        schema = getattr(changed.target, "_schema", None)
        if schema is not None and schema.returns[0].alias_info is None and "dropout" not in schema.name:
            node.target = aten.dropout.default  # the result has its own memory
            return
        changed = changed.args[0]


def can_divide(op: object) -> bool:
    """Returns whether PyTorch has the parts of an op, in which `trace` writes it."""
    return op in default_decompositions() and not any(name in str(op) for name in ("lstm", "gru", "rnn_"))


def _functional(program: torch.export.ExportedProgram, divided: Collection[Any] = ()) -> torch.export.ExportedProgram:
    """Returns the program without in-place ops and with the parts of the ops `divided`; refuses regions without gradients,
    whose borders would be lost."""
    constant: set[Node] = set()
    in_place = False
    kinds = {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}
    buffers = {name for name, kind in kinds.items() if kind in ("BUFFER", "CONSTANT_TENSOR")}
    for node in program.graph.nodes:
        _check_in_place(node, kinds, constant)
        if node.target is aten.dropout_.default:
            _dropout_of_a_result(node)
        if node.op == "get_attr" or node.name in buffers or (
                node.op == "call_function" and all(arg in constant for arg in node.all_input_nodes)):
            constant.add(node)
        elif node.op == "call_function":
            name = getattr(node.target, "__name__", "")
            in_place = in_place or _is_in_place(node)
            if name.startswith("wrap_with_") or name == "tag_activation_checkpoint":
                after = next((user for user in node.users if user.meta.get("stack_trace")), node)
                raise refuse(after, "a region without gradients or with another precision (torch.no_grad, autocast)",
                             "compute it outside the module, or remove the region")
    parts = default_decompositions() if divided else {}
    return program.run_decompositions({op: parts[op] for op in divided}) if in_place or divided else program


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the logs and the graph that PyTorch prints if a trace fails, because the error has the reason."""
    before, printed = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            yield
        print(printed.getvalue(), end="")
    finally:
        logging.disable(before)


_DATA_DEPENDENT = ("data-dependent", "data dependent", "DataDependent", "GuardOnDataDependent", "Could not guard",
                   "is not tracked with proxy", "Could not extract specialized", "unbacked")


def _reason(error: Exception, text: str) -> tuple[str, str]:
    """Returns why torch.export failed, and the way round. `text`: the first line of its message."""
    if "fake tensor in the exported program constant's list" in text:
        return "a tensor without its history, such as x.data", "use x itself; a plan has no stop of gradients"
    if any(word in str(error) or word in type(error).__name__ for word in _DATA_DEPENDENT):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(re.search(r"Expert|M[oO]E", type(frame.f_locals.get("self")).__name__) for frame in frames):
            return "a mixture of experts", EXPERTS
        if any(frame.f_code.co_name == "_detect_is_causal_mask" for frame in frames):
            return "a mask of nn.TransformerEncoder that is compared with a causal one", "pass is_causal=True with it"
        return ("control flow that depends on the data",
                "a plan is the same for each batch: remove the branch (.item(), if x.sum() > 0)")
    return (f"torch.export cannot trace the module: {type(error).__name__}: {text}",
            "the example has the arguments of module(...) as it is called in training; module(*example) must work by "
            "itself")


def trace(module: nn.Module, example: Any, divided: Collection[Any] = (), training: bool = True
          ) -> torch.export.ExportedProgram:
    """Returns torch.export's program of the module in train or eval mode, for the example's shapes. `divided`: ops that
    it has by their parts."""
    args, kwargs = torch.utils._pytree.tree_map_only(Tensor, Tensor.contiguous, arguments(example))
    _check_example(module, args, kwargs)
    with mode(module, training), traceable(module), _quiet(), watched(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, args, kwargs, strict=False)
            drop_counts(program, module)
            return _functional(program, divided)
        except ExportError:
            raise
        except Exception as error:
            file, line = _users_frame(error)
            text = str(error).strip().split("\n")[0]
            problem, hint = _reason(error, text)
            raise ExportError(problem, file=file, line=line, hint=hint) from error


def check_effects(traced: Traced) -> None:
    """Raises if the program changes a buffer or a parameter."""
    signature = traced.program.graph_signature
    changed = list(signature.buffers_to_mutate.values()) + list(getattr(signature, "user_inputs_to_mutate", {}).values())
    changed = [name for name in changed if name not in traced.buffers]
    if changed:
        raise ExportError(f"forward changes the buffer {changed[0]}", hint="a plan keeps only the running statistics "
                          "of nn.BatchNorm: counters and caches cannot be kept")


def find_loss(traced: Traced) -> Node:
    """Returns the node of the only result that is a scalar of floats, or of the one that contains all others."""
    output = next(node for node in traced.nodes if node.op == "output")
    results = [one for one in output.args[0] if isinstance(one, Node)]
    losses = [one for one in results if shape_of(one) == () and isinstance(one.meta.get("val"), Tensor)
              and one.meta["val"].is_floating_point() and one not in traced.constants]
    whole = [one for one in losses if set(losses) - {one} <= traced.cone(one, lambda _: True)[0]]
    if len(set(losses)) > 1 and len(set(whole)) != 1:
        file, line = place_of(losses[1])
        raise ExportError(f"{len(set(losses))} losses", file=file, line=line,
                          hint="a plan has one loss: return one of them")
    if not losses:
        file, line = place_of(results[-1]) if results else ("", 0)
        raise ExportError("the module returns no loss", file=file, line=line,
                          hint="return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) from forward, and pass "
                          "targets in the example; transformers' models return it if the example has labels")
    return whole[0]


def without_dropout(traced: Traced) -> list[tuple[Any, ...]]:
    """Returns the program's ops but for dropout, to compare train and eval mode."""
    result: list[tuple[Any, ...]] = []
    number: dict[Node, int] = {}
    live: set[Node] = set()
    for node in reversed(traced.nodes):
        if node.op != "call_function" or node in live:
            live.update(node.all_input_nodes)
    for node in traced.nodes:
        if node.op == "call_function" and node not in live:
            continue  # nothing reads it, such as a check of its type, or the arguments of a fused kernel
        if node in traced.in_drop_paths or node in traced.drop_paths:
            if node in traced.drop_paths:
                number[node] = number[traced.drop_paths[node][0]]
            continue
        if traced.same(node) and isinstance(node.args[0], Node) and node.args[0] in number:
            number[node] = number[node.args[0]]  # such as a copy of a fused attention's result, whose layout differs
            continue
        if (node.target in (aten.dropout.default, aten.native_dropout.default) or is_getitem(node)
                and getattr(node.args[0], "target", None) is aten.native_dropout.default) and isinstance(node.args[0], Node):
            number[node] = number[node.args[0]]
            continue
        if is_getitem(node) and getattr(node.args[0], "target", None) in BATCH_NORMS and isinstance(node.args[0], Node):
            number[node] = number[node.args[0]]
            continue
        number[node] = len(result)
        if node.target in BATCH_NORMS:  # eval mode takes the running statistics
            result.append(("batch_norm", repr([number.get(arg) for arg in node.args[:3]]), place_of(node)))
            continue
        results: Any = node.args
        if node.op == "output":  # without the buffers that it changes
            results = (node.args[0][len(traced.program.graph_signature.buffers_to_mutate):],)  # type: ignore[index]
        args = torch.fx.node.map_arg((results, node.kwargs), lambda arg: number[arg])
        if node.target is aten.scaled_dot_product_attention.default:
            args = (node.args[:4], {})  # dropout is refused elsewhere
            args = torch.fx.node.map_arg(args, lambda arg: number[arg])
        target = str(node.target)
        if node.target in RESHAPES and isinstance(node.args[0], Node):  # which of them depends on the layout in memory
            target, args = "aten.reshape.default", (number[node.args[0]], shape_of(node))
        result.append((target, repr(args), place_of(node)))
    return result


def check_modes(module: nn.Module, example: Any, traced: Traced, divided: Collection[Any]) -> None:
    """Raises if the module computes something else in eval mode, dropout apart."""
    other = in_order(Traced(trace(module, example, divided, training=False), module), module)
    for one, two in zip(without_dropout(traced), without_dropout(other)):
        if one != two:
            (file, line), op = one[2], one[0].removeprefix("aten.").split(".")[0]
            raise ExportError("the module differs between train and eval mode by more than dropout", file=file,
                              line=line, op=op, hint="a plan evaluates with the ops that it trains with")
