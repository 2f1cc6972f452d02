"""prun.fit: trains a PyTorch module on a mesh of ranks. It exports the module, runs the plan and loads the weights back.

Plan, weights, data in memory and the last checkpoint are in a temporary folder: in shared memory if they fit there.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .command import PathOrText
from .errors import CheckpointError, UsageError
from .job import Row, run
from .weights import _module, _tensors

_SHARED_MEMORY = "/dev/shm"
_STATE_COPIES = 5  # weights, and a checkpoint of weights and two moments, which is written before the old one goes
_TOKEN_FILE = {2: (20240520, 1, "<u2"), 4: (20240801, 7, "<u4")}  # llm.c's magic and version; type of an id


def _mesh(mesh: str | Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes of the axes of "pp=2, dp=4"."""
    if isinstance(mesh, Mapping):
        return dict(mesh)
    axes = [re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part) for part in mesh.split(",")]
    if not all(axes):
        raise UsageError(f"mesh should be like 'pp=2, dp=4', is '{mesh}'")
    return {axis[1]: int(axis[2]) for axis in axes if axis}


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
    with open(path, "rb") as file:
        magic = int.from_bytes(file.read(4), "little")
        kind = next((kind for known, _, kind in _TOKEN_FILE.values() if known == magic), None)
        file.seek(1024 if kind else 0)
        return numpy.frombuffer(file.read(count * 4), kind or "<u2")[:count]


def _example(module: Any, tokens: Any, context: int) -> Any:
    """Returns one sample: [1, context] ids and the next ones; a transformers model takes them as labels."""
    torch = _module("torch")
    if tokens.size < context + 1:
        raise UsageError(f"the data have {tokens.size} tokens, a sample of context={context} needs {context + 1}")
    ids = torch.from_numpy(tokens.astype("i8"))
    if "labels" in module.forward.__code__.co_varnames or hasattr(module, "config"):
        return {"input_ids": ids[None, :context], "labels": ids[None, :context]}
    return ids[None, :context], ids[None, 1 : context + 1]


def _place_data(data: Any, folder: pathlib.Path, name: str) -> dict[str, str]:
    """Returns the plan's arguments for the data. Arrays are written to the folder."""
    if isinstance(data, str | os.PathLike):
        return {"file": os.path.abspath(os.fspath(data))}
    if _is_array(data):
        _write_tokens(data, folder / f"{name}.bin")
        return {"file": str(folder / f"{name}.bin")}
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_array, data)):
        for part, array in zip(("x", "y"), data):
            _module("numpy").save(folder / f"{name}_{part}.npy", _numpy(array))
        return {"file": str(folder / f"{name}_x.npy"), "targets": str(folder / f"{name}_y.npy")}
    raise UsageError(f"data should be a token file, an array of token ids, or a pair of arrays, is {type(data).__name__}")


def _replace(plan: str, pattern: str, text: str) -> str:
    changed, count = re.subn(pattern, lambda _: text, plan, count=1, flags=re.MULTILINE | re.DOTALL)
    if count == 0:
        raise UsageError(f"the exported plan has no place for this: {text}")
    return changed


def _edit(plan: str, axes: Mapping[str, int], strategy: str | None, optimizer: str, lr: str | float,
          evaluation: str) -> str:
    """Returns the exported plan with the mesh, strategies, optimizer and evaluation of the call."""
    mesh = ", ".join(f"{axis} = {size}" for axis, size in axes.items())
    plan = _replace(plan, r"^  mesh  = .*?$", f"  mesh  = prun.mesh {{ {mesh} }},")
    if strategy is None:
        parts = {"pp": 'prun.pipeline { axis = "pp" }', "tp": 'prun.tensor_parallel { axis = "tp" }',
                 "cp": 'prun.context_parallel { axis = "cp" }', "dp": 'prun.zero3 { axis = "dp" }'}
        unknown = sorted(set(axes) - set(parts))
        if unknown:
            raise UsageError(f"fit has no strategy for the axis '{unknown[0]}': name it, strategy='prun. ...'")
        strategy = ", ".join(text for axis, text in parts.items() if axis in axes)
    plan = _replace(plan, r"^  strategy  = \{.*?^  \},$", f"  strategy  = {{ {strategy} }},{evaluation}")
    if re.fullmatch(r"\w+", optimizer):
        decay = ", weight_decay = arg.weight_decay" if optimizer in ("adamw", "lion") else ""
        optimizer = f"prun.{optimizer} {{ lr = {'arg.lr' if isinstance(lr, float) else lr}{decay} }}"
    return _replace(plan, r"^  optimizer = .*?$", f"  optimizer = {optimizer},")


@contextlib.contextmanager
def _scratch(bytes_of_weights: int) -> Iterator[pathlib.Path]:
    fits = os.path.isdir(_SHARED_MEMORY) and shutil.disk_usage(_SHARED_MEMORY).free > _STATE_COPIES * bytes_of_weights
    with tempfile.TemporaryDirectory(prefix="prun-", dir=_SHARED_MEMORY if fits else None) as folder:
        yield pathlib.Path(folder)


def _trained(checkpoint: pathlib.Path) -> dict[str, Any]:
    """Returns the weights of the newest checkpoint in a folder as torch tensors in the plan's layout."""
    torch = _module("torch")
    try:
        folder = checkpoint / (checkpoint / "LATEST").read_text().strip()
        index = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint} has no checkpoint: {error}") from error
    wanted = {name: entry for name, entry in index["tensors"].items() if not name.startswith("optimizer.")}
    files = {piece["file"] for entry in wanted.values() for piece in entry["pieces"]}
    pieces = {file: dict(_tensors(folder / file, "torch")) for file in files}
    trained: dict[str, Any] = {}
    for name, entry in wanted.items():
        parts = [(piece, pieces[piece["file"]][name]) for piece in entry["pieces"]]
        whole = torch.empty(entry["shape"], dtype=parts[0][1].dtype)
        for piece, part in parts:
            whole[tuple(slice(at, at + n) for at, n in zip(piece["offset"], piece["shape"]))] = part
        trained[name] = whole.mean(0) if entry.get("drift") else whole
    return trained


class _Bar:
    """One line on a terminal: steps, loss, and the time left."""

    def __init__(self, steps: int, progress: bool | None) -> None:
        self.steps, self.seconds = steps, 0.0
        self.shown = sys.stderr.isatty() if progress is None else progress

    def show(self, row: Row) -> None:
        if not self.shown or row.get("loss") is None:
            return
        step, self.seconds = row["step"], self.seconds + row["time_s"]
        full = round(20 * step / self.steps)
        left = self.seconds / step * (self.steps - step)
        end = "\n" if step == self.steps else ""
        sys.stderr.write(f"\r{100 * step // self.steps:3d}%|{'#' * full}{' ' * (20 - full)}| {step}/{self.steps} "
                         f"[{self.seconds:.0f}s<{left:.0f}s, {1 / max(row['time_s'], 1e-9):.2f}it/s, "
                         f"loss={row['loss']:.4g}] {end}")
        sys.stderr.flush()


def _refuse_torchrun() -> None:
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("prun.fit starts the ranks itself: run this program with python, without torchrun",
                         next="python train.py")


def fit(module: Any, data: Any, *, steps: int = 10, batch: int = 8, context: int = 0, example: Any = None,
        eval: Any = None, eval_every: int = 0, mesh: str | Mapping[str, int] = "dp=1", strategy: str | None = None,
        optimizer: str = "adamw", lr: float | str = 1e-3, weight_decay: float = 0.01, micro: int = 1,
        checkpoint: PathOrText | None = None, progress: bool | None = None,
        on_step: Callable[[Row], object] | None = None, **options: Any) -> list[Row]:
    """Trains a module in place and returns the rows of metrics, as prun.run does.

    `module`: takes a batch and returns the mean loss (prun.export has the details). `data`: a token file, an array of
    token ids of any shape, or a pair of arrays (x, y) whose entry i is sample i. `eval`: the same, evaluated every
    `eval_every` steps (0 = ten times). `context`: tokens of a sample. `example`: arguments for one call of the module,
    needed only if they are not (tokens, targets), input_ids and labels, or (x, y).

    `mesh`: "pp=2, dp=2, tp=2", whose product is the number of ranks. `strategy`: Lua, None = pipeline over pp,
    tensor_parallel over tp, zero3 over dp. `optimizer`: "adamw", "sgd", "lion", or Lua: "prun.sgd { lr = 0.1 }". `lr`: a
    number, or Lua: "prun.cosine { ... }". `batch`: samples of a step over all ranks, `micro`: parts of it that run one
    after another. `checkpoint`: a folder to keep. `options`: others of prun PLAN: `resume`, `device`.
    `progress`: a bar on sys.stderr, None = on a terminal. `on_step`: as of run.

    Parameters keep their devices and the module its train or eval state. Raises ExportError for a module that no plan can
    express, UsageError for wrong data and inside a torchrun job, and the exceptions of run; the module is then unchanged.
    """
    _refuse_torchrun()
    from . import export

    axes = _mesh(mesh)
    states = {name: each.training for name, each in module.named_modules()}
    size = sum(each.numel() * each.element_size() for each in module.parameters())
    with _scratch(size) as folder:
        settings: dict[str, Any] = {"steps": steps, "batch": batch, "micro": micro, "weight_decay": weight_decay}
        settings.update(_place_data(data, folder, "train"))
        if example is None and isinstance(data, tuple):
            example = tuple(_module("torch").from_numpy(_numpy(part)[:1]) for part in data)
        if example is None:
            if context < 1:
                raise UsageError("fit needs context=N, the tokens of a sample, or an example of the module's arguments")
            example = _example(module, _read_tokens(settings["file"], context + 1), context)
        try:
            exported = export(module, example)
            exported.save(folder / "model")
        finally:
            for name, each in module.named_modules():
                each.training = states[name]
        evaluation = ""
        if eval is not None:
            source = re.search(r"^  data      = (.*?),$", exported.plan, re.MULTILINE)
            text = source[1] if source else ""
            for name, value in _place_data(eval, folder, "eval").items():
                text = text.replace(f"arg.{name}", json.dumps(value))
            every = eval_every or math.ceil(steps / 10)
            evaluation = f'\n  eval      = prun.eval {{ every = {every}, batches = "all", data = {text} }},'
        if isinstance(lr, int | float):
            lr = settings["lr"] = float(lr)
        path = folder / "model.lua"
        path.write_text(_edit(path.read_text(), axes, strategy, optimizer, lr, evaluation))
        bar = _Bar(steps, progress)

        def each_step(row: Row) -> object:
            bar.show(row)
            return on_step(row) if on_step is not None else None

        kept = pathlib.Path(checkpoint) if checkpoint is not None else folder / "checkpoint"
        rows = run(path, nproc=math.prod(axes.values()), set=settings, on_step=each_step, checkpoint=kept,
                   runs=options.pop("runs", folder / "runs" if checkpoint is None else None), **options)
        exported.load_tensors(_trained(kept))
    return rows
