"""A traced module: torch.export's graph with constants folded, and questions that rules ask about it.

A rule sees nodes of this graph. It may ask which nodes a value is computed from (`cone`), compute a part of the graph
on numbers of its own (`evaluate`), and which elements of its source a view selects. Rules that compare numbers instead
of node names recognise a function however its author wrote it.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .errors import ExportError

aten = torch.ops.aten

# Ops that return their input if the dtype remains the same. A plan in f64 also omits casts to f32 and back, with
# which programs widen bf16 for norms and losses.
_SAME = {
    aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten._to_copy.default, aten.contiguous.default,
    aten.type_as.default,
    aten.clone.default, aten.alias.default,
}
# Ops that select, repeat and reorder elements.
MOVEMENT = {
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints, aten.unflatten.int,
    aten.transpose.int, aten.permute.default, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.default, aten.squeeze.dims, aten.expand.default, aten.slice.Tensor, aten.select.int,
    aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int,
    aten.repeat_interleave.self_int, aten.movedim.int, aten.narrow.default, aten.expand_as.default, aten.take.default,
    aten.index.Tensor, aten.index_select.default, aten.broadcast_to.default,
}
RESHAPES = {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints,
            aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.default, aten.squeeze.dims, aten.unflatten.int}
ELEMENTWISE = {
    aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.rsub.Scalar, aten.mul.Tensor, aten.mul.Scalar,
    aten.div.Tensor, aten.neg.default, aten.pow.Tensor_Scalar, aten.square.default, aten.sqrt.default,
    aten.rsqrt.default, aten.reciprocal.default, aten.tanh.default, aten.erf.default, aten.sigmoid.default,
    aten.exp.default, aten.silu.default, aten.gelu.default, aten.relu.default, aten.clamp_min.default,
    aten.clamp.default, aten.maximum.default, aten.abs.default,
}
_VIEWS = {aten.view.default, aten._unsafe_view.default}  # evaluated as reshape: strides differ between dtypes
# Ops whose result depends on the shape of their first argument only.
_FILLED = {aten.new_zeros.default, aten.zeros_like.default, aten.new_ones.default, aten.ones_like.default,
           aten.new_full.default, aten.full_like.default, aten.fill.Scalar}
_RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "dropout")


def is_getitem(node: Node) -> bool:
    """Returns whether `node` picks one of several results."""
    return getattr(node.target, "__name__", "") == "getitem"


def op_name(node: Node) -> str:
    """Returns the op's name as PyTorch's documentation has it, such as `layer_norm`."""
    text = str(node.target)
    return text.removeprefix("aten.").split(".")[0] if text.startswith("aten.") else getattr(
        node.target, "__name__", text)


def place_of(node: Node | None) -> tuple[str, int]:
    """Returns the file and line of the user's Python that made the node."""
    text = (node.meta.get("stack_trace") or "") if node is not None else ""
    found = re.findall(r'File "([^"]+)", line (\d+)', text)
    own = [one for one in found if not re.search(r"/torch/(nn|_|fx|export|functional|utils)", one[0])] or found
    return (own[-1][0], int(own[-1][1])) if own else ("", 0)


def refuse(node: Node | None, problem: str, hint: str = "") -> ExportError:
    """Returns the error for a node that no plan can express."""
    file, line = place_of(node)
    return ExportError(problem, file=file, line=line, op=op_name(node) if node is not None else "", hint=hint)


def shape_of(node: Node) -> tuple[int, ...]:
    """Returns the shape of a node's tensor; () for scalars."""
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else ()


def modules_of(node: Node) -> list[str]:
    """Returns the paths of the modules that the node was traced in, outermost first, without the root's ""."""
    stack = node.meta.get("nn_module_stack") or {}
    return [re.sub(r"^L\['self'\]\.?", "", path) for path, _ in stack.values() if path]


def _in_f64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _converted(value: Any, node: Node) -> Any:
    """Returns the result of a node that returns its input or converts it between integers and floats, which are f64."""
    before, after = node.args[0].meta.get("val"), node.meta.get("val")  # type: ignore[union-attr]
    if not isinstance(value, Tensor) or not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return value
    if after.dtype == torch.bool:
        return value.bool()
    if before.is_floating_point() == after.is_floating_point():
        return value
    return value.double() if after.is_floating_point() else value.to(after.dtype)


def _drop_paths(nodes: Iterable[Node]) -> tuple[dict[Node, tuple[Node, float]], set[Node]]:
    """Returns the nodes that zero whole samples of a tensor and divide the others by the share that is kept, x / keep *
    floor(rand + keep), with x and the share that is zeroed; and the nodes that compute them."""
    found: dict[Node, tuple[Node, float]] = {}
    parts: set[Node] = set()
    for node in nodes:
        if node.target is not aten.mul.Tensor:
            continue
        for divided, kept in (node.args[:2], node.args[1::-1]):
            below = [kept]
            for target in (aten.floor.default, aten.add.Tensor, aten.rand.default):
                one = below[-1]
                if not isinstance(one, Node) or one.target is not target or len(one.users) != 1:
                    break
                below.append(one.args[0])
            if len(below) < 4 or not isinstance(divided, Node) or divided.target is not aten.div.Tensor:
                continue
            x, keep = divided.args[:2]
            shape = shape_of(below[2])  # type: ignore[arg-type]
            if isinstance(x, Node) and below[1].args[1] == keep and shape == shape_of(x)[:1] + (1,) * (len(shape) - 1):  # type: ignore[union-attr]
                found[node] = x, 1 - float(keep)  # type: ignore[arg-type]
                parts |= {divided, *below[:3]}  # type: ignore[arg-type]
    return found, parts


class Traced:
    """An exported program, seen by rules.

    `constants`: nodes whose value depends on no parameter and no input, with it. `parameters`: placeholder nodes of
    trainable and frozen parameters with their first name in the module; `tensors`: the parameters by name. `inputs`:
    placeholder nodes of the example's tensors with the argument's name. `buffers`: those that a plan keeps, too;
    `tensors` has them. `drop_paths`: see _drop_paths.
    """

    def __init__(self, program: torch.export.ExportedProgram, module: torch.nn.Module) -> None:
        from .buffers import buffers_of

        self.program, self.module = program, module
        self.constants: dict[Node, Any] = {}
        self.parameters: dict[Node, str] = {}
        self.inputs: dict[Node, str] = {}
        self.buffers = buffers_of(module)
        self.tensors: dict[str, Tensor] = {**dict(module.named_parameters(remove_duplicate=False)), **self.buffers}
        self.nodes = list(program.graph.nodes)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        self.drop_paths, self.in_drop_paths = _drop_paths(self.nodes)
        self._read_placeholders()
        self._fold()

    def _read_placeholders(self) -> None:
        held = {**dict(self.program.state_dict), **dict(self.program.constants)}
        of = {node.name: node for node in self.nodes if node.op == "placeholder"}
        first: dict[int, str] = {}
        for spec in self.program.graph_signature.input_specs:
            node, kind = of[spec.arg.name], spec.kind.name
            if kind == "PARAMETER" and spec.target is not None:
                name = first.setdefault(id(self.tensors[spec.target]), spec.target)
                self.parameters[node] = name
            elif kind in ("BUFFER", "CONSTANT_TENSOR") and spec.target is not None:
                self.constants[node] = held[spec.target]
            elif kind == "USER_INPUT":
                if isinstance(node.meta.get("val"), Tensor):
                    self.inputs[node] = node.name
                else:
                    self.constants[node] = node.meta.get("val")

    def _fold(self) -> None:
        """Computes constants in f64, because a plan has them as numbers, also where the program rounds them to f32."""
        self.constants = {node: _in_f64(value) for node, value in self.constants.items()}
        with torch.no_grad():
            for node in self.nodes:
                if node in self.in_drop_paths or node.target is aten._assert_tensor_metadata.default:
                    continue
                if node.op == "get_attr":
                    self.constants[node] = _in_f64(getattr(self.program.graph_module, str(node.target)))
                elif node.op == "call_function" and all(arg in self.constants for arg in node.all_input_nodes):
                    if any(word in op_name(node) for word in _RANDOM) and "dropout" not in op_name(node):
                        raise refuse(node, "random numbers", "only nn.Dropout is random in a plan")
                    if node.target in _SAME:
                        value = _converted(self.constants[node.args[0]], node)  # type: ignore[index]
                    else:
                        value = self._call(node, self.constants)
                    self.constants[node] = _in_f64(value)
                elif node.target in _FILLED and all(arg in self.constants for arg in node.all_input_nodes[1:]):
                    empty = torch.zeros(shape_of(node), dtype=node.meta["val"].dtype)
                    self.constants[node] = self._call(node, {**self.constants, node.args[0]: empty})  # type: ignore[dict-item]
                elif node.target is aten.gather.default and self._even(node.args[0]):
                    even = self.constants[node.args[0]]  # wherever it is read, such as token types of zeros
                    self.constants[node] = even.flatten()[:1].expand(shape_of(node)).clone()

    def _even(self, arg: Any) -> bool:
        """Returns whether an argument is a constant tensor of one value."""
        value = self.constants.get(arg) if isinstance(arg, Node) else None
        return isinstance(value, Tensor) and value.numel() > 0 and bool((value == value.flatten()[0]).all())

    def _call(self, node: Node, known: Mapping[Node, Any], in_f64: bool = False) -> Any:
        args = torch.fx.node.map_arg(node.args, lambda arg: known[arg])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda arg: known[arg])
        if in_f64:  # also where the module computes in f32
            wide = {torch.float32: torch.float64, torch.bfloat16: torch.float64}
            args = tuple(wide.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args)
            kwargs = {name: wide.get(arg, arg) if isinstance(arg, torch.dtype) else arg for name, arg in kwargs.items()}
        target = aten.reshape.default if node.target in _VIEWS else node.target
        assert callable(target)
        return target(*args, **kwargs)

    # Questions of the rules.

    def constant(self, arg: Any) -> Any:
        """Returns the value of a number, or of a node that folds; None for others."""
        return self.constants.get(arg) if isinstance(arg, Node) else arg

    def number(self, arg: Any) -> float | None:
        """Returns a constant with one element as a float; None for others."""
        value = self.constant(arg)
        if isinstance(value, Tensor):
            return float(value) if value.numel() == 1 else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def parameter(self, arg: Any) -> str | None:
        """Returns the name of a parameter's node; None for others."""
        return self.parameters.get(arg) if isinstance(arg, Node) else None

    def reshaped_parameter(self, node: Node) -> str | None:
        """Returns the name of a parameter that reshapes give its own shape in the end; None for others."""
        shape = shape_of(node)
        while self.same(node) or (node.target in RESHAPES and isinstance(node.args[0], Node)):
            node = self._before(node) if self.same(node) else node.args[0]  # type: ignore[assignment]
        return self.parameter(node) if shape_of(node) == shape else None

    def same(self, node: Node) -> bool:
        """Returns whether the node returns its first argument unchanged."""
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            return False
        if node.target is aten.dropout.default:
            return bool(node.args[1] == 0 or not node.args[2])
        if node.target in _SAME:
            a, b = node.args[0].meta.get("val"), node.meta.get("val")
            return isinstance(a, Tensor) and isinstance(b, Tensor) and a.device == b.device and (
                a.dtype == b.dtype or {a.dtype, b.dtype} == {torch.float32, torch.float64})
        if is_getitem(node) and node.args[0].target is aten.broadcast_tensors.default:
            return self._original(node) is not None
        return bool(node.target in (aten.expand.default, aten.slice.Tensor)
                    and shape_of(node) == shape_of(node.args[0]))

    def _original(self, node: Node) -> Node | None:
        """Returns the tensor that broadcast_tensors returns unchanged; None if it broadcasts."""
        together, which = node.args
        assert isinstance(together, Node) and isinstance(which, int) and isinstance(together.args[0], list | tuple)
        one = together.args[0][which]
        return one if isinstance(one, Node) and shape_of(one) == shape_of(node) else None

    def _before(self, node: Node) -> Node:
        original = self._original(node) if is_getitem(node) else None
        before = original or node.args[0]
        assert isinstance(before, Node)
        return before

    def follow(self, node: Node) -> Node:
        """Follows nodes that return their input."""
        while self.same(node):
            node = self._before(node)
        return node

    def strip(self, node: Node) -> Node:
        """Follows nodes that return their input, and reshapes that leave the rows (the last dim) as they are."""
        while True:
            if self.same(node):
                node = self._before(node)
                continue
            if node.target in RESHAPES and isinstance(node.args[0], Node):
                before, after = shape_of(node.args[0]), shape_of(node)
                if before[-1:] == after[-1:] and math.prod(before) == math.prod(after):
                    node = node.args[0]
                    continue
            source = self._undone(node)
            if source is None:
                return node
            node = source

    def _undone(self, node: Node) -> Node | None:
        """Returns the tensor that a chain of views reorders and puts back in order; None for other nodes."""
        if node in self.constants or node.target not in (aten.transpose.int, aten.permute.default, aten.take.default):
            return None
        chosen = self.selection(node)
        if chosen is None or shape_of(chosen[0])[-1:] != shape_of(node)[-1:]:
            return None
        index = chosen[1].flatten()
        return chosen[0] if torch.equal(index, torch.arange(index.numel())) and (
            index.numel() == math.prod(shape_of(chosen[0]))) else None

    def cone(self, node: Node, inner: Callable[[Node], bool], stop: Iterable[Node] = ()) -> tuple[set[Node], set[Node]]:
        """Returns the nodes that `node` is computed by while `inner` holds, and the leaves below them.

        Constants belong to neither. Nodes in `stop` are leaves.
        """
        inside: set[Node] = set()
        leaves: set[Node] = set()
        stops, todo = set(stop), [node]
        while todo:
            one = todo.pop()
            if one in inside or one in leaves or one in self.constants:
                continue
            if one in stops or one.op != "call_function" or not (inner(one) or self.same(one)):
                leaves.add(one)
                continue
            inside.add(one)
            # The other argument of type_as gives only its type.
            todo.extend([self._before(one)] if one.target is aten.type_as.default else one.all_input_nodes)
        return inside, leaves

    def evaluate(self, node: Node, given: Mapping[Node, Tensor]) -> Tensor:
        """Computes `node` in f64 from the values of some of its ancestors. Constants are converted to f64."""
        known: dict[Node, Any] = dict(given)
        todo = [node]
        while todo:
            one = todo[-1]
            if one in known:
                todo.pop()
                continue
            if one in self.constants:
                known[one] = self.constants[one]
                continue
            if one.op != "call_function":
                raise KeyError(one.name)
            needed = [one.args[0]] if one.target in _SAME else one.all_input_nodes
            missing = [arg for arg in needed if isinstance(arg, Node) and arg not in known]
            if missing:
                todo.extend(missing)
            elif one.target in _SAME or (one.target is aten.dropout.default and self.same(one)):
                known[one] = _converted(known[one.args[0]], one)  # type: ignore[index]
            else:
                known[one] = self._call(one, known, in_f64=True)
        result = known[node]
        assert isinstance(result, Tensor)
        return result

    def source(self, node: Node) -> Node | None:
        """Returns the tensor that a chain of views begins with, `node` itself for others; None if there are several."""
        _, leaves = self.cone(node, lambda one: one.target in MOVEMENT or is_getitem(one))
        found = next(iter(leaves)) if len(leaves) == 1 else None
        return found if found is not None and isinstance(found.meta.get("val"), Tensor) else None

    def selection(self, node: Node) -> tuple[Node, Tensor] | None:
        """Returns the source of a chain of views, and for each element the flat index of its source element.

        None if `node` is computed from several tensors. The index is as large as the tensor: check `source` first.
        """
        source = self.source(node)
        if source is None:
            return None
        shape = shape_of(source)
        index = torch.arange(math.prod(shape)).reshape(shape)
        return source, (index if source is node else self.evaluate(node, {source: index}))
