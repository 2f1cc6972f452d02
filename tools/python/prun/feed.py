"""prun.feed: feeds a job of prun.data.feed with the batches of an iterator, through shared memory.

The layout is that of runtime/include/prun/feed.h. The job detects a dead feeder by its lock, and the feeder a dead job
by the job's; the kernel frees the lock of a process that ends.
"""
from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import math
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .errors import UsageError

_HEADER, _SLOT_HEADER, _TEXT, _ALIGN = 16384, 512, 256, 64
_BATCH, _FINGERPRINT, _MADE, _STATE, _ATTACHED, _MESSAGE = 16, 40, 104, 112, 116, 120
_SAMPLES, _CURSOR, _RANKS, _ANSWERED, _INPUTS, _INPUT_BYTES, _TAKEN = 376, 384, 640, 644, 680, 120, 4520
_MOST_INPUTS, _MOST_DIMS = 32, 8
_FEEDS, _ENDED, _FAILED = 0, 1, 2
_ELEMENTS = {"?": "u8", "B": "u8", "H": "u16", "I": "u32", "i": "i32", "q": "i64", "l": "i64", "f": "f32", "d": "f64"}
_WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
_HALVES = {"float16": "f16", "bfloat16": "bf16"}  # Python's buffers have no format for bfloat16
_GONE_S = 1.0  # a job without its lock for so long has ended
Batches = Iterable[Any] | Callable[[str, int], Iterable[Any]]


def path_of(name: str) -> str:
    """Returns the file of a feed's ring."""
    return name if "/" in name else f"/dev/shm/prun-feed-{os.getuid()}-{name}"


class _Array(NamedTuple):
    """The memory of an array, its element type and its shape."""

    view: memoryview
    element: str
    shape: tuple[int, ...]


def _array(name: str, value: Any) -> _Array:
    """Returns an array of numpy, a CPU tensor of torch, or an object with Python's buffer protocol."""
    half = _HALVES.get(str(getattr(value, "dtype", "")).rpartition(".")[2], "")
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        value = (value.view(sys.modules["torch"].int16) if half else value).numpy()
    elif half:
        value = value.view("uint16")
    try:
        view = memoryview(value)
    except TypeError:
        raise UsageError(f"the batch's {name!r} should be an array, is {type(value).__name__}") from None
    element = half or _ELEMENTS.get(view.format.lstrip("<=@"))
    if not element:
        raise UsageError(f"the batch's {name!r} has elements of the format {view.format!r}: bool, uint8, uint16, "
                         "uint32, int32, int64, float16, bfloat16, float32 and float64 are possible")
    if view.ndim == 0:
        raise UsageError(f"the batch's {name!r} is one number: it needs a dimension of samples")
    return _Array(view, element, tuple(view.shape or ()))


def _arrays(batch: Any, names: list[str] | None) -> dict[str, _Array]:
    """Returns the arrays of a batch by name. `names`: of a batch that is a tuple or a list."""
    if isinstance(batch, Mapping):
        return {str(name): _array(str(name), value) for name, value in sorted(batch.items())}
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if names is None or len(names) != len(parts):
        raise UsageError(f"a batch has {len(parts)} parts and no names: give inputs=[...], a name for each, or batches "
                         "that are dictionaries" if names is None else
                         f"a batch has {len(parts)} parts, and inputs names {len(names)}")
    return {name: _array(name, value) for name, value in sorted(zip(names, parts))}


class _Ring:
    """The file of a feed. The first batch determines its inputs."""

    def __init__(self, name: str, first: dict[str, _Array], slots: int, fingerprint: str) -> None:
        self.path, self.slots = path_of(name), slots
        self.inputs: dict[str, tuple[str, tuple[int, ...], int]] = {}  # element, shape and offset by name
        if not 1 <= len(first) <= _MOST_INPUTS:
            raise UsageError(f"a batch has {len(first)} inputs, 1 to {_MOST_INPUTS} are possible")
        self.batch = next(iter(first.values())).shape[0]
        offset = _SLOT_HEADER
        table = b""
        for input_name, (_, element, shape) in first.items():
            dims = shape[1:]
            if shape[0] != self.batch or len(dims) > _MOST_DIMS or len(input_name.encode()) > 31:
                raise UsageError(f"the batch's {input_name!r} has the shape {list(shape)}, the batch has "
                                 f"{self.batch} samples; there are at most {_MOST_DIMS} further dims")
            offset = -(-offset // _ALIGN) * _ALIGN
            self.inputs[input_name] = (element, shape, offset)
            table += struct.pack("<32s8sQQ8Q", input_name.encode(), element.encode(), offset, len(dims), *dims,
                                 *(_MOST_DIMS - len(dims)) * [0])
            offset += math.prod(shape) * _WIDTHS[element]
        self.slot_bytes = -(-offset // _ALIGN) * _ALIGN
        size = _HEADER + slots * self.slot_bytes
        part = f"{self.path}.{os.getpid()}.part"
        self.file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self.file, 0, size)
            self.map = mmap.mmap(self.file, size)
            self.map[0:40] = struct.pack("<8sIIQQQ", b"prunfeed", 1, len(first), self.batch, slots, self.slot_bytes)
            self.map[_FINGERPRINT : _FINGERPRINT + 64] = fingerprint.encode()[:63].ljust(64, b"\0")
            self.map[_INPUTS : _INPUTS + len(table)] = table
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            self._refuse_second()
            os.rename(part, self.path)
        except BaseException:
            os.unlink(part)
            os.close(self.file)
            raise

    def _refuse_second(self) -> None:
        """Raises if a living feeder has this name; the file of a dead one is replaced."""
        with contextlib.suppress(FileNotFoundError):
            other = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError:
                raise UsageError(f"another process feeds {self.path}: give this feed another name") from None
            finally:
                os.close(other)

    def number(self, at: int, form: str = "<I") -> int:
        return int(struct.unpack_from(form, self.map, at)[0])

    def put(self, at: int, form: str, value: int) -> None:
        struct.pack_into(form, self.map, at, value)

    def text(self, at: int) -> str:
        return self.map[at : at + _TEXT].split(b"\0", 1)[0].decode(errors="replace")

    def fail(self, message: str) -> None:
        self.map[_MESSAGE : _MESSAGE + _TEXT] = message.encode()[: _TEXT - 1].ljust(_TEXT, b"\0")
        self.put(_STATE, "<I", _FAILED)

    def job_lives(self) -> bool:
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)
        except OSError:
            return True
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, 1)
        return False

    def taken(self) -> int:
        """Returns the number of batches that all ranks have read."""
        ranks = self.number(_RANKS)
        return min(struct.unpack_from(f"<{ranks}Q", self.map, _TAKEN), default=0)

    def has_room(self, number: int) -> bool:
        return self.taken() > number - self.slots

    def write(self, number: int, batch: dict[str, _Array], cursor: str) -> None:
        if set(batch) != set(self.inputs):
            raise UsageError(f"batch {number} has {', '.join(batch)}, the first had {', '.join(self.inputs)}")
        slot = _HEADER + number % self.slots * self.slot_bytes
        self.put(slot, "<Q", number)
        for name, (view, *found) in batch.items():
            element, shape, offset = self.inputs[name]
            if found != [element, shape]:
                raise UsageError(f"batch {number}: {name!r} is {found[0]} {list(found[1])}, in the first batch it was "
                                 f"{element} {list(shape)} (a DataLoader has drop_last=True)")
            if math.prod(shape):
                data = view.cast("B") if view.c_contiguous else view.tobytes()
                self.map[slot + offset : slot + offset + len(data)] = data
        text = cursor.encode()
        if len(text) >= _TEXT:
            raise UsageError(f"a cursor has at most {_TEXT - 1} bytes, this one has {len(text)}")
        self.map[slot + 16 : slot + 16 + _TEXT] = text.ljust(_TEXT, b"\0")
        self.put(slot + 8, "<Q", ~number & (2**64 - 1))
        self.put(_MADE, "<Q", number + 1)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.map.close()
        os.close(self.file)


class Feeder:
    """A feed in progress. run() feeds until the job ends; stop() ends it from another thread."""

    def __init__(self, batches: Batches, name: str, *, inputs: list[str] | None = None, slots: int = 4,
                 fingerprint: str = "", cursor: Callable[[], str] | None = None) -> None:
        self._batches, self._names, self._cursor = batches, inputs, cursor or (lambda: "")
        self._stop = threading.Event()
        self._source: Iterator[Any] | None = self._begin("", 0)
        try:
            self._first = next(self._source)
        except StopIteration:
            raise UsageError("there is no batch to feed") from None
        self._ring_of = functools.partial(_Ring, name, slots=slots, fingerprint=fingerprint)
        self.ring = self._ring_of(_arrays(self._first, inputs))
        self.path = self.ring.path

    def rename(self, first: Any) -> None:
        """Replaces the first batch by one with other inputs, which the following ones have, too. Before run()."""
        self.ring.close()
        self._first = first
        self.ring = self._ring_of(_arrays(first, self._names))

    def _begin(self, cursor: str, samples: int) -> Iterator[Any]:
        return iter(self._batches) if isinstance(self._batches, Iterable) else iter(self._batches(cursor, samples))

    def _from(self, cursor: str, samples: int) -> Iterator[Any]:
        """Returns the batches from a position of the job on."""
        if self._source is not None and samples == 0:
            source, self._source = self._source, None
            return itertools.chain([self._first], source)
        by_cursor = not isinstance(self._batches, Iterable)
        if self._source is None and isinstance(self._batches, Iterator):
            raise UsageError("the job begins anew, and an iterator gives its batches once: feed a function or a "
                             "DataLoader")
        if by_cursor or self._source is None:
            self._source = None
            source = self._begin(cursor, samples)
        else:
            source, self._source = itertools.chain([self._first], self._source), None
        return source if by_cursor else itertools.islice(source, samples // self.ring.batch, None)

    def stop(self) -> None:
        self._stop.set()

    def _wait(self, ready: Callable[[], bool], attached: int) -> bool:
        """Waits for `ready`; returns False if the job has ended, begins anew, or stop() was called."""
        pause, looks, gone = 2e-5, 0.0, None
        while not ready():
            if self._stop.is_set() or self.ring.number(_ATTACHED) != attached:
                return False
            now = time.monotonic()
            if attached and now >= looks:
                looks = now + 0.05
                gone = None if self.ring.job_lives() else gone or now
                if gone and now - gone > _GONE_S:
                    return False
            time.sleep(pause)
            pause = min(pause * 2, 1e-3)
        return True

    def run(self) -> int:
        """Feeds until the job has ended or has read all batches; returns the number of batches fed last."""
        ring, made = self.ring, 0
        try:
            self._wait(lambda: ring.number(_ATTACHED) != 0, 0)
            while not self._stop.is_set() and (attached := ring.number(_ATTACHED)):
                made = 0
                ring.put(_MADE, "<Q", 0)
                ring.put(_STATE, "<I", _FEEDS)
                ring.put(_ANSWERED, "<I", attached)
                for batch in self._from(ring.text(_CURSOR), ring.number(_SAMPLES, "<Q")):
                    if not self._wait(functools.partial(ring.has_room, made), attached):
                        break
                    ring.write(made, _arrays(batch, self._names), self._cursor())
                    made += 1
                else:
                    ring.put(_STATE, "<I", _ENDED)
                    self._wait(lambda: False, attached)
                if ring.number(_ATTACHED) == attached:
                    break
        except BaseException as error:
            ring.fail(f"{type(error).__name__}: {error}")
            attached = ring.number(_ATTACHED)
            if attached:  # the job reads the message, then it ends
                self._wait(lambda: False, attached)
            raise
        finally:
            ring.close()
        return made


def feed(batches: Batches, name: str, *, inputs: list[str] | None = None, slots: int = 4, fingerprint: str = "",
         cursor: Callable[[], str] | None = None) -> int:
    """Feeds the job whose plan has prun.data.feed { name = `name` } and returns when it ends.

    `batches`: an iterable of batches, for example a DataLoader with drop_last=True, or a function (cursor, samples)
    that returns one which begins there. A batch is a dictionary of arrays, or a tuple whose parts `inputs` names: numpy
    arrays, tensors of torch, or other buffers, [batch, ...]. `cursor`: called after each batch, returns a text of at
    most 255 bytes that a checkpoint stores. Without it, a resumed job skips the batches that it has had.
    `fingerprint`: identifies the data set; a checkpoint of another one is refused. Raises UsageError for a batch that
    differs from the first, and the exceptions of the iterator, which end the job with code 21.
    """
    return Feeder(batches, name, inputs=inputs, slots=slots, fingerprint=fingerprint, cursor=cursor).run()
