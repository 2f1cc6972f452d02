"""Weights as state dicts: prun.load reads checkpoints and safetensors, prun.save writes a folder that plans read.

The format is parsed here, so that neither safetensors nor torch is needed: a JSON header, then the tensors' data.
"""
from __future__ import annotations

import importlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from .command import answer_of
from .errors import CheckpointError, UsageError

# safetensors' name of a type -> its name in numpy and in torch. numpy has no bfloat16.
_TYPES = {"F64": ("<f8", "float64"), "F32": ("<f4", "float32"), "F16": ("<f2", "float16"), "BF16": ("<u2", "bfloat16"),
          "I64": ("<i8", "int64"), "I32": ("<i4", "int32"), "I16": ("<i2", "int16"), "I8": ("|i1", "int8"),
          "U8": ("|u1", "uint8"), "BOOL": ("|b1", "bool")}  # fmt: skip
_NAMES = {torch: name for name, (_, torch) in _TYPES.items()}
_LARGEST_HEADER = 100_000_000


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed here: pip install {name}") from error


def _header(path: pathlib.Path, data: bytes) -> tuple[dict[str, Any], int]:
    """Returns the header of a file and the offset of its data."""
    length = int.from_bytes(data[:8], "little")
    try:
        if len(data) < 8 or length > min(_LARGEST_HEADER, len(data) - 8):
            raise ValueError("it is cut, or no safetensors file")
        header = json.loads(data[8 : 8 + length])
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return header, 8 + length


def _array(kind: str, shape: list[int], data: bytearray, framework: str) -> Any:
    if framework == "torch":
        torch = _module("torch")
        dtype = getattr(torch, _TYPES[kind][1])
        return (torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)).reshape(shape)
    numpy = _module("numpy")
    array = numpy.frombuffer(data, dtype=_TYPES[kind][0])
    if kind == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array.reshape(shape)


def _tensors(path: pathlib.Path, framework: str) -> Iterator[tuple[str, Any]]:
    data = path.read_bytes()
    header, begin = _header(path, data)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape, (first, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if kind not in _TYPES:
                raise CheckpointError(f"{path}: {name} is {kind}; prun.load reads {', '.join(_TYPES)}")
            if not 0 <= first <= end <= len(data) - begin:
                raise ValueError("its data end after the file")
            yield name, _array(kind, shape, bytearray(data[begin + first : begin + end]), framework)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: the entry of {name} is damaged: {error}") from error


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))


def _is_checkpoint(path: pathlib.Path) -> bool:
    return (path / "index.json").is_file() or any(path.glob("step_*/index.json"))


def _holds_adapters(path: pathlib.Path) -> bool:
    return answer_of(["ckpt", "show", os.fspath(path)]).get("lora") is not None


def load(
    checkpoint: str | os.PathLike[str], *, framework: str = "numpy", description: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Returns the weights of a checkpoint as a state dict: names and arrays.

    `checkpoint`: a checkpoint of prun, a folder of them (its newest is read), a folder of safetensors or one such file,
    for example of Hugging Face or from safetensors.torch.save_file. `framework`: "numpy" or "torch", which must be
    installed. A checkpoint's names are those of the plan, "block0.qkv.weight", unless `description` gives others: an
    architecture ("mistral"), a file, or the folder of weights of an exported module, for its load_state_dict.

    Shapes are PyTorch's: weights of linear layers are [out, in], embeddings [vocabulary, width]. Adapters are
    added to the weights of their base. Types are as stored; numpy, which has no bfloat16, gets f32 instead. Optimizer
    state is omitted.
    Raises CheckpointError for missing and damaged files, UsageError for a missing framework.
    """
    if framework not in ("numpy", "torch"):
        raise UsageError(f"framework should be 'numpy' or 'torch', is '{framework}'")
    path = pathlib.Path(checkpoint)
    if not _is_checkpoint(path):
        files = _files(path)
        if not files:
            raise CheckpointError(f"there are no weights at {path}: no checkpoint and no .safetensors file")
        return {name: value for file in files for name, value in _tensors(file, framework)}
    with tempfile.TemporaryDirectory(prefix="prun-") as folder:
        out = pathlib.Path(folder, "weights")
        words = ["ckpt", "export", os.fspath(path), "--format", "torch", "--out", str(out)]
        words += ["--merge"] if _holds_adapters(path) else []
        answer_of(words + (["--description", os.fspath(description)] if description is not None else []))
        return {name: value for file in _files(out) for name, value in _tensors(file, framework)}


def _stored(name: str, value: Any) -> tuple[str, list[int], bytes]:
    """Returns type, shape and data of a tensor or an array."""
    if hasattr(value, "detach"):  # a torch.Tensor
        torch = _module("torch")
        value = value.detach().cpu().contiguous()
        kind = _NAMES.get(str(value.dtype).removeprefix("torch."))
        data = bytes(value.reshape(-1).view(torch.uint8).numpy()) if kind and value.numel() else b""
    else:
        value = _module("numpy").asarray(value, order="C")
        kind, data = _NAMES.get(str(value.dtype)), value.tobytes()
    if kind is None:
        raise UsageError(f"{name} is {value.dtype}; prun.save writes {', '.join(_NAMES)}")
    return kind, list(value.shape), data


def save(state: Mapping[str, Any], folder: str | os.PathLike[str]) -> None:
    """Writes a state dict to FOLDER/model.safetensors, which `prun.init.from { path = FOLDER }` of a plan reads.

    `state`: names of the plan and torch tensors or numpy arrays in PyTorch's shapes: weights of linear layers are
    [out, in]. The plan transposes them. The folder is made; a file in it is replaced when the new one is complete.
    Raises UsageError for a type that the format lacks, CheckpointError if the file cannot be written.
    """
    if not isinstance(state, Mapping) or not isinstance(folder, str | os.PathLike):
        raise UsageError("prun.save(state, folder) writes a dict of tensors, such as module.state_dict(), and was given "
                         f"{type(state).__name__} and {type(folder).__name__}")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    pieces: list[bytes] = []
    at = 0
    # Wider elements first, so that each tensor is aligned to its element size.
    stored = {name: _stored(name, value) for name, value in state.items()}
    for name, (kind, shape, data) in sorted(stored.items(), key=lambda item: -int(_TYPES[item[1][0]][0][2:])):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        pieces.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = pathlib.Path(folder, "model.safetensors")
    part = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.writelines(pieces)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
