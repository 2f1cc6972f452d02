"""The data of prun.fit: a token file, arrays in memory, or batches of a DataLoader.

The exporter decides which inputs the plan has, and by which names. So each kind of data first gives an example of the
module's arguments, and after the export the plan's data.
"""
from __future__ import annotations

import inspect
import math
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .weights import _module

if TYPE_CHECKING:
    from .export import Exported

_TOKEN_FILE = {2: (20240520, 1, "<u2"), 4: (20240801, 7, "<u4")}  # llm.c's magic and version; type of an id
_IGNORED = -100  # a target that does not count


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _numpy(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return _module("numpy").asarray(value)
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


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


def _parts(data: Any) -> list[Any]:
    return list(data.values()) if isinstance(data, Mapping) else list(data) if isinstance(data, tuple | list) else [data]


def _arguments(module: Any, data: Any, count: int) -> Any:
    """Returns the first `count` samples as arguments of the module: by name if the data have its names."""
    torch = _module("torch")
    types = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    ids = {torch.int16, torch.int32} | {getattr(torch, name) for name in ("uint16", "uint32") if hasattr(torch, name)}

    def first(part: Any) -> Any:
        part = part[:count] if hasattr(part, "detach") else torch.from_numpy(_numpy(part)[:count])
        if part.is_floating_point():
            return part.to(types.pop()) if len(types) == 1 else part
        return part.long() if part.dtype in ids else part

    values = [first(part) for part in _parts(data)]
    known = inspect.signature(module.forward).parameters
    if not isinstance(data, Mapping) and len(values) == 2 and "labels" in known:  # a model of transformers
        return dict(zip((next(iter(known)), "labels"), values))
    if not isinstance(data, Mapping):
        return tuple(values)
    named = set(data) <= set(known) or any(one.kind is one.VAR_KEYWORD for one in known.values())
    return dict(zip(data, values)) if named else tuple(values)


def _by_input(exported: Exported, data: Any) -> dict[str, Any]:
    """Returns arrays by the names of the plan's inputs."""
    given = data if isinstance(data, Mapping) and set(exported.arguments) & set(data) else dict(
        zip(exported.arguments, _parts(data)))
    missing = [name for name in exported.inputs.values() if name not in given]
    if missing:
        raise UsageError(f"the data have no {missing[0]!r}, which the module reads; they have {', '.join(map(str, given))}")
    result = {}
    for name, argument in exported.inputs.items():
        value = given[argument]
        if exported.shifted and exported.context:  # a plan of tokens, without the last one
            value = value[:, 1:] if name == "targets" else value[:, :-1]
        elif exported.shifted and name == "targets":
            value = _numpy(value).astype("i8")
            value = _module("numpy").pad(value[:, 1:], ((0, 0), (0, 1)), constant_values=_IGNORED)
        result[name] = _numpy(value).astype("f4") if argument in exported.numbers else value
    return result


class TokenFile:
    """A token file, or token ids that are written to one."""

    def __init__(self, data: Any, folder: pathlib.Path, prefix: str, context: int) -> None:
        self.prefix, self.context = prefix, context
        self.path = str(folder / f"{prefix}tokens.bin") if is_array(data) else os.path.abspath(os.fspath(data))
        if is_array(data):
            _write_tokens(data, pathlib.Path(self.path))

    def example(self, module: Any, count: int) -> Any:
        """Returns one sample as arguments of the module: [1, context] ids and the next ones.

        A module whose forward has `labels`, as those of transformers, shifts them itself.
        """
        torch = _module("torch")
        context = self.context
        if context < 1:
            raise UsageError("fit needs context=N, the tokens of a sample, or an example of the module's arguments")
        tokens = _read_tokens(self.path, context + 1)
        if tokens.size < context + 1:
            raise UsageError(f"the data have {tokens.size} tokens, a sample of context={context} needs {context + 1}")
        ids = torch.from_numpy(tokens.astype("i8"))
        if "labels" in inspect.signature(module.forward).parameters:
            return {"input_ids": ids[None, :context], "labels": ids[None, :context]}
        return ids[None, :context], ids[None, 1 : context + 1]

    def settings(self) -> dict[str, str]:
        """Returns arguments of the plan."""
        return {f"{self.prefix}file": self.path}

    def lua(self, exported: Exported) -> str:
        """Returns the plan's data, "" = those of the exported plan."""
        if exported.inputs.keys() != {"tokens", "targets"}:
            raise UsageError(f"a token file has no {', '.join(sorted(exported.inputs.values()))}: give an array for each, "
                             f"data={{{', '.join(f'{name!r}: ...' for name in sorted(set(exported.inputs.values())))}}}")
        return ""


class Arrays:
    """Arrays whose entry i is sample i: those of the module's arguments in their order, or by name."""

    def __init__(self, data: Any, folder: pathlib.Path, prefix: str) -> None:
        self.data, self.folder, self.prefix = data, folder, prefix
        sizes = [part.shape[0] if len(part.shape) else 0 for part in _parts(data)]
        if len(set(sizes)) > 1 or 0 in sizes:
            raise UsageError(f"the arrays of the data have {', '.join(map(str, sizes))} samples")

    def example(self, module: Any, count: int) -> Any:
        """Returns samples as arguments of the module."""
        return _arguments(module, self.data, count)

    def settings(self) -> dict[str, str]:
        """Returns arguments of the plan."""
        return {}

    def lua(self, exported: Exported) -> str:
        """Writes the arrays and returns the plan's data."""
        from .export.template import quoted

        files = []
        for name, value in _by_input(exported, self.data).items():
            path = self.folder / f"{self.prefix}{name}.npy"
            _module("numpy").save(path, _numpy(value))
            files.append(f"{name} = {quoted(str(path))}")
        inputs = ", ".join(files)
        inputs = inputs if exported.inputs.keys() <= {"x", "y"} else f"inputs = {{ {inputs} }}"
        return f"prun.data.arrays {{ {inputs}, batch = arg.batch }}"


def is_feed(data: Any) -> bool:
    """Returns whether the data are batches or samples that Python makes: a DataLoader, a Dataset, an iterator."""
    numbers = isinstance(data, list) and bool(data) and isinstance(data[0], int | float)
    known = isinstance(data, str | os.PathLike | tuple | Mapping) or is_array(data) or numbers
    return not known and (hasattr(data, "__iter__") or hasattr(data, "__getitem__") or callable(data))


def data_bytes(data: Any) -> int:
    """Returns the bytes of the files that `data_of` and `lua` write."""
    parts = [] if is_feed(data) else _parts(data)
    return sum(int(math.prod(part.shape)) * 8 for part in parts if is_array(part))


def data_of(data: Any, folder: pathlib.Path, context: int, prefix: str = "") -> TokenFile | Arrays:
    """Returns a file or arrays. `prefix`: of the plan's arguments."""
    if isinstance(data, str | os.PathLike) or is_array(data):
        return TokenFile(data, folder, prefix, context)
    if isinstance(data, tuple | Mapping) and data and all(map(is_array, _parts(data))):
        return Arrays(data, folder, prefix)
    raise UsageError("data should be a token file, an array of token ids, a tuple or a dict of arrays, or batches such as "
                     f"a DataLoader's, is {type(data).__name__}")


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


class Feed:
    """The feeder of a fit: a thread of this process. A batch's parts become the inputs of the exported plan."""

    def __init__(self, data: Any, batch: int, name: str) -> None:
        from .feed import Feeder

        self.source: Any = _batches(data, batch)
        self.first: Any = None
        self.exported: Exported | None = None
        by_position = callable(self.source) and not hasattr(self.source, "__iter__")
        once = not by_position and iter(self.source) is self.source
        made: Any = map(self._inputs, self.source) if once else _Mapped(self.source, self._inputs)
        self.feeder = Feeder((lambda cursor, samples: map(self._inputs, self.source(cursor, samples)))
                             if by_position else made, name)
        size = self.feeder.ring.batch
        if size != batch:
            self.feeder.ring.close()
            several = ": a list is one of batches, arrays are a tuple" if isinstance(data, list) else ""
            raise UsageError(f"the data's batches have {size} samples, and batch={batch}{several}")
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="prun.feed", daemon=True)

    def _inputs(self, batch: Any) -> dict[str, Any]:
        """Returns a batch by the names of the plan's inputs, or before the export by number."""
        if self.first is None:
            self.first = batch
        if self.exported is None:
            return {str(i): part for i, part in enumerate(_parts(batch))}
        return _by_input(self.exported, batch)

    def example(self, module: Any, count: int) -> Any:
        """Returns samples as arguments of the module."""
        return _arguments(module, self.first, count)

    def settings(self) -> dict[str, str]:
        """Returns arguments of the plan."""
        return {}

    def lua(self, exported: Exported) -> str:
        """Returns the plan's data, whose inputs the batches have from now on."""
        from .export.template import quoted

        self.exported = exported
        self.feeder.rename(self._inputs(self.first))
        kinds = {"u8": "uint8", "u16": "uint16", "u32": "uint32", "i32": "int32", "i64": "int64", "f32": "float32",
                 "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
        inputs = ", ".join(f'{name} = {{ "{kinds[element]}"{"".join(f", {size}" for size in shape[1:])} }}'
                           for name, (element, shape, _) in self.feeder.ring.inputs.items())
        path = quoted(self.feeder.path)
        return f"prun.data.feed {{ name = {path}, batch = arg.batch, inputs = {{ {inputs} }} }}"

    def _run(self) -> None:
        try:
            self.feeder.run()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        """Feeds from now on."""
        self.thread.start()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        if self.thread.ident is None:  # not started
            self.feeder.ring.close()
            return
        self.feeder.stop()
        self.thread.join()
        if self.error is not None:
            raise self.error


class _Mapped:
    def __init__(self, source: Any, of: Callable[[Any], Any]) -> None:
        self.source, self.of = source, of

    def __iter__(self) -> Iterator[Any]:
        return map(self.of, self.source)
