"""prun.fit: trains a PyTorch module on a mesh of ranks: exports it, runs the plan and loads the weights back.

Plan, weights, data in memory and the last checkpoint are in a temporary folder (scratch.py).
"""
from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import pathlib
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .command import PathOrText
from .errors import JobFailed, PlanError, UsageError
from .job import Row, run
from .scratch import scratch
from .weights import _module

_STATE_COPIES = 5  # weights, and a checkpoint of weights and two moments, which is written before the old one goes
_STRATEGIES = {"pp": "pipeline", "tp": "tensor_parallel", "cp": "context_parallel", "dp": "zero3"}  # by axis
_ORDERED = {"pp", "replicate", "dp", "shard", "cp", "ep", "tp"}  # axes that lua/prun/mesh.lua sorts
_NOT_OPTIONS = {"nproc": "mesh='dp=2' starts two ranks", "set": "steps, batch, micro, lr, ... are arguments of fit"}
_TOKEN_FILE = {2: (20240520, 1, "<u2"), 4: (20240801, 7, "<u4")}  # llm.c's magic and version; type of an id


def _mesh(mesh: str | Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes of the axes of "pp=2, dp=4"."""
    if isinstance(mesh, Mapping):
        pairs = [(str(axis), str(size)) for axis, size in mesh.items()]
    else:
        found = [re.fullmatch(r"\s*(\w+)\s*=\s*(\w+)\s*", part) for part in str(mesh).split(",")]
        pairs = [(axis[1], axis[2]) if axis else ("", "") for axis in found]
    axes = {axis: int(size) for axis, size in pairs if axis.isidentifier() and size.isdecimal() and int(size) > 0}
    if len(axes) < len(pairs):
        raise UsageError(f"mesh should be like 'pp=2, dp=4', is {mesh!r}")
    return axes


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else _module("numpy").asarray(value)


def _write_tokens(tokens: Any, path: pathlib.Path) -> None:
    numpy = _module("numpy")
    ids = _numpy(tokens).reshape(-1)
    if ids.dtype.kind not in "iu" or ids.size == 0 or ids.min() < 0:
        raise UsageError(f"data should be token ids from 0, is {ids.dtype}" + ("" if ids.size else " without elements"))
    magic, version, kind = _TOKEN_FILE[2 if ids.max() < 2**16 else 4]
    header = numpy.zeros(256, "<i4")
    header[:3] = magic, version, ids.size
    path.write_bytes(header.tobytes() + ids.astype(kind).tobytes())


def _read_tokens(path: str, count: int) -> Any:
    """Returns the first ids of a token file, as numpy."""
    numpy = _module("numpy")
    try:
        with open(path, "rb") as file:
            magic = int.from_bytes(file.read(4), "little")
            kind = next((kind for known, _, kind in _TOKEN_FILE.values() if known == magic), None)
            file.seek(1024 if kind else 0)
            read = file.read(count * 4)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; data is a token file, an array of token ids, or a pair of arrays"
                         ) from error
    kind = kind or "<u2"
    return numpy.frombuffer(read[: len(read) // int(kind[2]) * int(kind[2])], kind)[:count]


def _example(module: Any, data: Any, file: str, context: int) -> Any:
    """Returns one sample of the data as arguments of the module: (x, y), or [1, context] ids and the next ones.

    A module whose forward has `labels`, as those of transformers, shifts them itself.
    """
    torch = _module("torch")
    if isinstance(data, tuple):
        return tuple(torch.from_numpy(_numpy(part)[:1]) for part in data)
    if context < 1:
        raise UsageError("fit needs context=N, the tokens of a sample, or an example of the module's arguments")
    tokens = _read_tokens(file, context + 1)
    if tokens.size < context + 1:
        raise UsageError(f"the data have {tokens.size} tokens, a sample of context={context} needs {context + 1}")
    ids = torch.from_numpy(tokens.astype("i8"))
    if "labels" in inspect.signature(module.forward).parameters:
        return {"input_ids": ids[None, :context], "labels": ids[None, :context]}
    return ids[None, :context], ids[None, 1 : context + 1]


def _data_bytes(data: Any) -> int:
    """Returns the bytes of the files that _place_data writes."""
    if _is_feed(data):
        return 0
    parts = data if isinstance(data, tuple) else (data,)
    return sum(int(math.prod(part.shape)) * 8 for part in parts if _is_array(part))


def _place_data(data: Any, folder: pathlib.Path, prefix: str = "") -> dict[str, str]:
    """Returns the plan's arguments for the data. Arrays are written to the folder."""
    if isinstance(data, str | os.PathLike):
        return {f"{prefix}file": os.path.abspath(os.fspath(data))}
    if _is_array(data):
        path = folder / f"{prefix}tokens.bin"
        _write_tokens(data, path)
        return {f"{prefix}file": str(path)}
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_array, data)):
        paths = [folder / f"{prefix}x.npy", folder / f"{prefix}y.npy"]
        for path, array in zip(paths, data):
            _module("numpy").save(path, _numpy(array))
        return {f"{prefix}file": str(paths[0]), f"{prefix}targets": str(paths[1])}
    raise UsageError("data should be a token file, an array of token ids, a pair of arrays, or batches such as a "
                     f"DataLoader's, is {type(data).__name__}")


def _is_feed(data: Any) -> bool:
    """Returns whether the data are batches or samples that Python makes: a DataLoader, a Dataset, an iterator."""
    numbers = isinstance(data, list) and bool(data) and isinstance(data[0], int | float)
    known = isinstance(data, str | os.PathLike | tuple) or _is_array(data) or numbers
    return not known and (hasattr(data, "__iter__") or hasattr(data, "__getitem__") or callable(data))


def _batches(data: Any, batch: int) -> Any:
    """Returns batches of `batch` samples. A torch Dataset is shuffled each epoch."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list):
        loader = _module("torch").utils.data.DataLoader
        return _epochs(loader(data, batch_size=batch, shuffle=True, drop_last=True))
    return _epochs(data) if hasattr(data, "batch_sampler") else data


class _epochs:
    """The batches of a DataLoader, again and again."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        while True:
            count = 0
            for each in self.loader:
                count += 1
                yield each
            if count == 0:
                return


class _Feed:
    """The feeder of a fit: a thread of this process. A batch's parts become the inputs of the exported plan."""

    def __init__(self, data: Any, batch: int, name: str, shifts: bool) -> None:
        from .feed import Feeder

        self.source, self.shifts, self.names = _batches(data, batch), shifts, ["x", "y"]
        self.first: Any = None
        by_position = callable(self.source) and not hasattr(self.source, "__iter__")
        once = not by_position and iter(self.source) is self.source
        made: Any = map(self._inputs, self.source) if once else _Mapped(self.source, self._inputs)
        self.feeder = Feeder((lambda cursor, samples: map(self._inputs, self.source(cursor, samples)))
                             if by_position else made, name)
        size = self.feeder.ring.batch
        if size != batch:
            self.feeder.ring.close()
            raise UsageError(f"the data's batches have {size} samples, and batch={batch}")
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="prun.feed", daemon=True)

    def _inputs(self, batch: Any) -> dict[str, Any]:
        """Returns a batch by the names of the plan's inputs."""
        if isinstance(batch, Mapping):
            parts = list(batch.values())
            if {"input_ids", "labels"} <= set(batch):
                parts = [batch["input_ids"], batch["labels"]]
        else:
            parts = list(batch) if isinstance(batch, tuple | list) else [batch]
        if len(parts) != 2:
            raise UsageError(f"a batch should have two parts, inputs and targets, has {len(parts)}")
        self.first = self.first or parts
        ids = all(str(part.dtype).rpartition(".")[2] in ("int64", "int32") and part.ndim == 2 for part in parts)
        if ids and self.shifts:
            return {"tokens": parts[0][:, :-1], "targets": parts[1][:, 1:]}
        return dict(zip(("tokens", "targets") if ids else ("x", "y"), parts))

    def example(self) -> Any:
        """Returns one sample as arguments of the module."""
        torch = _module("torch")
        parts = [part[:1] if hasattr(part, "detach") else torch.from_numpy(_numpy(part)[:1]) for part in self.first]
        parts = [part.long() if not part.is_floating_point() else part for part in parts]
        return {"input_ids": parts[0], "labels": parts[0]} if self.shifts else tuple(parts)

    def lua(self) -> str:
        """Returns the data of the plan."""
        kinds = {"u8": "uint8", "u16": "uint16", "u32": "uint32", "i32": "int32", "i64": "int64", "f32": "float32",
                 "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
        inputs = ", ".join(f'{name} = {{ "{kinds[element]}"{"".join(f", {size}" for size in shape[1:])} }}'
                           for name, (element, shape, _) in self.feeder.ring.inputs.items())
        return f"prun.data.feed {{ name = arg.file, batch = arg.batch, inputs = {{ {inputs} }} }}"

    def _run(self) -> None:
        try:
            self.feeder.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> _Feed:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.feeder.stop()
        self.thread.join()
        if self.error is not None:
            raise self.error


class _Mapped:
    def __init__(self, source: Any, of: Callable[[Any], Any]) -> None:
        self.source, self.of = source, of

    def __iter__(self) -> Iterator[Any]:
        return map(self.of, self.source)


def _mesh_fields(axes: Mapping[str, int]) -> str:
    """Returns the fields of prun.mesh: names, which prun orders if it has an order for them, otherwise a list."""
    if set(axes) <= _ORDERED:
        return ", ".join(f"{axis} = {size}" for axis, size in axes.items())
    return ", ".join(f'{{ "{axis}", {size} }}' for axis, size in axes.items())


def _strategies(axes: Mapping[str, int], strategy: str | None) -> list[str]:
    """Returns Lua expressions. `strategy`: Lua, the name of one for dp, or None."""
    if strategy is not None and not strategy.isidentifier():
        return [strategy]
    if strategy is not None and "dp" not in axes:
        raise UsageError(f"strategy='{strategy}' is for the axis 'dp', which the mesh lacks")
    parts = {**_STRATEGIES, **({} if strategy is None else {"dp": strategy})}
    unknown = sorted(set(axes) - set(parts))
    if unknown:
        raise UsageError(f"fit has no strategy for the axis '{unknown[0]}': name it, strategy='prun. ...'")
    return [f'prun.{name} {{ axis = "{axis}" }}' for axis, name in parts.items() if axis in axes]


def _optimizer(optimizer: str, lr: str | float) -> str:
    """Returns a Lua expression. `optimizer`: Lua, or a name."""
    if not optimizer.isidentifier():
        return optimizer
    decay = ", weight_decay = arg.weight_decay" if optimizer in ("adamw", "adam", "lion", "adafactor") else ""
    return f"prun.{optimizer} {{ lr = {lr if isinstance(lr, str) else 'arg.lr'}{decay} }}"


class _Bar:
    """One line on a terminal: steps, loss, and the time left."""

    def __init__(self, steps: int, progress: bool | None) -> None:
        self.steps, self.count, self.seconds = steps, 0, 0.0  # of the plan; of steps shown, after a resume fewer
        self.shown = sys.stderr.isatty() if progress is None else progress

    def show(self, row: Row) -> None:
        if not self.shown or row.get("loss") is None:
            return
        step, self.count, self.seconds = row["step"], self.count + 1, self.seconds + row["time_s"]
        full = round(20 * step / self.steps)
        left = self.seconds / self.count * (self.steps - step)
        sys.stderr.write(f"\r{100 * step // self.steps:3d}%|{'#' * full}{' ' * (20 - full)}| {step}/{self.steps} "
                         f"[{self.seconds:.0f}s<{left:.0f}s, {1 / max(row['time_s'], 1e-9):.2f}it/s, "
                         f"loss={row['loss']:.4g}] ")
        sys.stderr.flush()

    def close(self) -> None:
        """Ends the line, also that of a job which ended early."""
        if self.count:
            sys.stderr.write("\n")


@contextlib.contextmanager
def _keeps_evidence(plan: pathlib.Path) -> Iterator[None]:
    """Keeps what a failure names in the temporary folder: the line of the plan, the folder of the run."""
    try:
        yield
    except PlanError as error:
        if error.file == str(plan):
            line = plan.read_text("utf-8").splitlines()[error.line - 1].strip()
            error.add_note(f"line {error.line} of the plan: {line}")
        raise
    except JobFailed as error:
        if error.run.startswith(str(plan.parent)):
            error.run = str(shutil.copytree(error.run, pathlib.Path("runs", pathlib.Path(error.run).name)))
        raise


def _refuse_torchrun() -> None:
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("prun.fit starts the ranks itself: run this program with python, without torchrun",
                         next="python train.py")


def fit(module: Any, data: Any, *, steps: int = 10, batch: int = 8, context: int = 0, example: Any = None,
        eval: Any = None, eval_every: int = 0, mesh: str | Mapping[str, int] = "dp=1", strategy: str | None = None,
        optimizer: str = "adamw", lr: float | str = 1e-3, weight_decay: float = 0.01, micro: int = 1,
        dtype: str | None = None, checkpoint: PathOrText | None = None, progress: bool | None = None,
        on_step: Callable[[Row], object] | None = None, **options: Any) -> list[Row]:
    """Trains a module in place and returns the rows of metrics, as prun.run does.

    `module`: takes a batch and returns the mean loss (prun.export has the details). `data`: a token file, an array of
    token ids of any shape, a pair of arrays (x, y) whose entry i is sample i, a torch DataLoader or Dataset, or an
    iterable of batches of two parts (prun.feed has the details). `eval`: files or arrays, evaluated every `eval_every`
    steps (0 = ten times). `context`: tokens of a sample. `example`: arguments for one call of the module,
    needed only if they are not (tokens, targets), input_ids and labels, or (x, y).

    `mesh`: "pp=2, dp=2, tp=2", whose product is the number of ranks. `strategy`: Lua, or the name of one for dp,
    "ddp"; None = pipeline over pp, tensor_parallel over tp, context_parallel over cp, zero3 over dp. `optimizer`:
    "adamw", "adam", "sgd", "lion", "adafactor", or Lua: "prun.sgd { lr = 0.1 }". `lr`: a number, or Lua: "prun.cosine
    { ... }". `batch`: samples of a step over all ranks, `micro`: parts of it that run one after another. `dtype`: of compute, "bf16",
    "f32" or "f64", None = that of the parameters. `checkpoint`: a folder to keep. `options`: others of prun PLAN:
    `resume`, `device`. `progress`: a bar on sys.stderr, None = on a terminal. `on_step`: as of run.

    Weights go to the ranks and back through shared memory, or through temporary files if they do not fit. The module
    keeps its train or eval state. Raises ExportError for a module that no plan can express, UsageError for wrong data
    and inside a torchrun job, and the exceptions of run; the module is then unchanged, as it is after Ctrl-C.
    """
    _refuse_torchrun()
    for name, instead in _NOT_OPTIONS.items():
        if name in options:
            raise UsageError(f"fit has no option '{name}': {instead}")
    from . import export
    from .export.template import Choices

    axes = _mesh(mesh)
    choices = Choices(mesh=_mesh_fields(axes), arguments=(), strategy=_strategies(axes, strategy),
                      optimizer=_optimizer(optimizer, lr), evaluate=eval is not None)
    settings: dict[str, Any] = {"steps": steps, "batch": batch, "micro": micro, "weight_decay": weight_decay,
                                "lr": None if isinstance(lr, str) else float(lr), "dtype": dtype}
    size = sum(each.numel() * each.element_size() for each in module.parameters())
    copies = _STATE_COPIES if checkpoint is None else 1
    with contextlib.ExitStack() as held:
        folder = held.enter_context(scratch(size * copies + _data_bytes(data) + _data_bytes(eval)))
        feed = None
        if _is_feed(data):
            feed = _Feed(data, batch, f"fit-{os.getpid()}-{id(module):x}",
                         "labels" in inspect.signature(module.forward).parameters)
            held.enter_context(feed)
            settings["file"] = feed.feeder.path
            example = feed.example() if example is None else example
        else:
            settings.update(_place_data(data, folder))
        if eval is not None:
            settings.update(_place_data(eval, folder, "eval_"), eval_every=eval_every or math.ceil(steps / 10))
        if example is None:
            example = _example(module, data, settings["file"], context)
        exported = export(module, example)
        if feed is not None:
            choices = dataclasses.replace(choices, data=feed.lua())
        plan = exported.save(folder / "model", choices)
        bar = _Bar(steps, progress)

        def each_step(row: Row) -> object:
            bar.show(row)
            return on_step(row) if on_step is not None else None

        kept = pathlib.Path(checkpoint) if checkpoint is not None else folder / "checkpoint"
        options.setdefault("runs", folder / "runs" if checkpoint is None else None)
        given = {name: value for name, value in settings.items() if value is not None}
        with _keeps_evidence(plan), contextlib.closing(bar):
            rows = run(plan, nproc=math.prod(axes.values()), set=given, on_step=each_step, checkpoint=kept, **options)
        exported.load(kept)
    return rows
