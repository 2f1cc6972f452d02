"""The temporary folder of a call: in shared memory if its files fit there, otherwise among temporary files.

The interpreter holds a lock on its folder. A killed interpreter leaves the folder, without the lock; the next call
removes it.
"""
from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator

from .errors import UsageError

SHARED_MEMORY = "/dev/shm"
_PREFIX = "prun-fit-"
_SETTLED_S = 60  # a younger folder may not have its lock yet


def _places() -> set[str]:
    return {place for place in (SHARED_MEMORY, tempfile.gettempdir()) if os.path.isdir(place)}


def remove_left_over() -> None:
    """Removes this user's folders of interpreters that were killed."""
    for folder in (each for place in _places() for each in pathlib.Path(place).glob(_PREFIX + "*")):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _SETTLED_S:
                continue
            lock = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: pathlib.Path) -> int:
    """Returns a descriptor that holds the lock of a folder; raises OSError if a process has it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened


@contextlib.contextmanager
def scratch(size: int) -> Iterator[pathlib.Path]:
    """Yields a folder for files of `size` bytes in all and removes it."""
    remove_left_over()
    fits = os.path.isdir(SHARED_MEMORY) and shutil.disk_usage(SHARED_MEMORY).free > size
    place = tempfile.gettempdir()
    if not fits and (free := shutil.disk_usage(place).free) <= size:
        raise UsageError(f"{place} has {free >> 20} MiB free, and the data and weights of this call take "
                         f"{size >> 20} MiB: free space, or name another folder by TMPDIR")
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=SHARED_MEMORY if fits else None) as name:
        lock = None
        with contextlib.suppress(OSError):  # a file system without locks, where no call removes folders
            lock = _lock(pathlib.Path(name))
        try:
            yield pathlib.Path(name)
        finally:
            if lock is not None:
                os.close(lock)
