"""prun from Python: runs, checks and simulates plans, exports and trains PyTorch modules, and reads weights back.

Importing the package imports nothing but the standard library. numpy, torch, safetensors and IPython are needed only by
the functions that use them. `python -m prun` is the prun command.
"""
from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from . import glibc
from .errors import (
    CheckFailed,
    CheckpointError,
    CheckpointWriteError,
    CollectiveMismatch,
    FeedFailed,
    Hang,
    JobFailed,
    JoinFailed,
    Killed,
    LinkError,
    NonFinite,
    OutOfMemory,
    PlanError,
    Preempted,
    PrunError,
    RankFailed,
    ScriptLimit,
    TransportError,
    UsageError,
)

glibc.check(__path__[0])

if TYPE_CHECKING:
    from .answers import check, sim, tune
    from .command import version
    from .export import export
    from .feed import feed
    from .fit import fit
    from .job import run
    from .weights import load, save

# Imported when they are first used.
_LAZY = {"run": "job", "check": "answers", "sim": "answers", "tune": "answers", "load": "weights", "save": "weights",
         "version": "command", "export": "export", "fit": "fit", "feed": "feed"}  # fmt: skip

__all__ = [
    "CheckFailed", "CheckpointError", "CheckpointWriteError", "CollectiveMismatch", "FeedFailed", "Hang", "JobFailed", "JoinFailed",
    "Killed", "LinkError", "NonFinite", "OutOfMemory", "PlanError", "Preempted", "PrunError", "RankFailed",
    "ScriptLimit", "TransportError", "UsageError", "check", "export", "feed", "fit", "load", "run", "save", "sim", "tune",
    "version"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .command import version

        return version()
    if name not in _LAZY:
        raise AttributeError(f"module 'prun' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


class _Package(types.ModuleType):
    """Keeps `prun.export` and `prun.fit` functions when Python has imported the modules of the same names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _LAZY and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Registers the cell magic %%prun: `%load_ext prun`."""
    from .magic import register

    register(shell)
