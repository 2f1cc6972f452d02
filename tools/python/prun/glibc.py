"""Rejects a system whose C library is older than the one that the package's programs were linked for.

pip does so when it installs a wheel. A tree that was copied from another machine is checked here, at import. The wheel
has the version in a file (wheel_backend.py); a source tree has no such file.
"""
from __future__ import annotations

import os
import pathlib
import re

FILE = "glibc_version"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def check(folder: str | os.PathLike[str]) -> None:
    """Raises ImportError if this system's C library cannot run the programs in `folder`, the package."""
    try:
        needed = pathlib.Path(folder, FILE).read_text(encoding="ascii").strip()
    except OSError:
        return
    try:
        found = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        found = ""
    if _numbers(found) < _numbers(needed):
        raise ImportError(f"prun in {folder} needs glibc {needed} or newer, and this system has "
                          f"{found or 'another C library'}: build prun here, pip install . in its source tree")
