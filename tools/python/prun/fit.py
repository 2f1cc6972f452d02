"""prun.fit: trains a PyTorch module on a mesh of ranks: exports it, runs the plan and loads the weights back.

Plan, weights, data in memory and the last checkpoint are in a temporary folder (scratch.py).
"""
from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .command import PathOrText
from .errors import JobFailed, PlanError, UsageError
from .fit_data import Feed, TokenFile, data_bytes, data_of, is_feed
from .job import Row, run
from .scratch import scratch

_STATE_COPIES = 5  # weights, and a checkpoint of weights and two moments, which is written before the old one goes
_STRATEGIES = {"pp": "pipeline", "tp": "tensor_parallel", "cp": "context_parallel", "dp": "zero3"}  # by axis
_ORDERED = {"pp", "replicate", "dp", "shard", "cp", "ep", "tp"}  # axes that lua/prun/mesh.lua sorts
_NOT_OPTIONS = {"nproc": "mesh='dp=2' starts two ranks", "set": "steps, batch, micro, lr, ... are arguments of fit"}


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
    token ids of any shape, a tuple of arrays whose entry i is sample i, such as (x, y), or a dict of them by the module's
    arguments, a torch DataLoader or Dataset, or an iterable of batches that are such tuples or dicts (prun.feed has the
    details). `eval`: files or arrays, evaluated every `eval_every` steps (0 = ten times). `context`: tokens of a sample
    of a file. `example`: arguments for one call of the module, needed only if the data do not show them.

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
    from .export.capture import check_module
    from .export.template import Choices

    check_module(module)

    axes = _mesh(mesh)
    choices = Choices(mesh=_mesh_fields(axes), arguments=(), strategy=_strategies(axes, strategy),
                      optimizer=_optimizer(optimizer, lr), evaluate=eval is not None)
    settings: dict[str, Any] = {"steps": steps, "batch": batch, "micro": micro, "weight_decay": weight_decay,
                                "lr": None if isinstance(lr, str) else float(lr), "dtype": dtype}
    size = sum(each.numel() * each.element_size() for each in module.parameters())
    copies = _STATE_COPIES if checkpoint is None else 1
    with contextlib.ExitStack() as held:
        folder = held.enter_context(scratch(size * copies + data_bytes(data) + data_bytes(eval)))
        feed = Feed(data, batch, f"fit-{os.getpid()}-{id(module):x}") if is_feed(data) else None
        given = held.enter_context(feed) if feed else data_of(data, folder, context)
        settings.update(given.settings())
        of_files = isinstance(given, TokenFile)
        exported = export(module, given.example(module, 1) if example is None else example, of_files=of_files)
        if example is None and exported.pairs and batch > 1:  # a plan of as many samples as the example has
            exported = export(module, given.example(module, batch), of_files=of_files)
        if exported.pairs and (math.prod(axes.values()) > 1 or micro > 1):
            raise UsageError("the loss compares all samples of a batch: train with mesh='dp=1' and micro=1")
        choices = dataclasses.replace(choices, data=given.lua(exported))
        if eval is not None:
            held_out = data_of(eval, folder, context, "eval_")
            settings.update(held_out.settings(), eval_every=eval_every or math.ceil(steps / 10))
            choices = dataclasses.replace(choices, eval_data=held_out.lua(exported))
        plan = exported.save(folder / "model", choices)
        if feed:
            feed.start()
        bar = _Bar(steps, progress)

        def each_step(row: Row) -> object:
            bar.show(row)
            return on_step(row) if on_step is not None else None

        kept = pathlib.Path(checkpoint) if checkpoint is not None else folder / "checkpoint"
        options.setdefault("runs", folder / "runs" if checkpoint is None else None)
        chosen = {name: value for name, value in settings.items() if value is not None}
        with _keeps_evidence(plan), contextlib.closing(bar):
            rows = run(plan, nproc=math.prod(axes.values()), set=chosen, on_step=each_step, checkpoint=kept, **options)
        exported.load(kept)
    return rows
