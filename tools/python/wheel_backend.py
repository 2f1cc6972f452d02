"""Builds prun's wheel: scikit-build-core compiles and installs, auditwheel bundles the shared libraries.

    pip wheel .                                   # compiles everything
    pip wheel . -C built=build/ci                 # packs a build that is finished

The wheel holds no Python extension, so that one file serves every Python 3.
"""
from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
from typing import Any

from scikit_build_core import build as core
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist  # noqa: F401  (hooks of pip)

TOP = pathlib.Path(__file__).resolve().parents[2]
GLIBC = "prun/glibc_version"
# Libraries that belong to the host's driver.
LEFT_OUT = ["libcuda.so.1", "libnccl.so.2"]


def _settings(settings: dict[str, Any] | None) -> dict[str, Any]:
    rest = dict(settings or {})
    built = rest.pop("built", None)
    if built is not None:
        rest["cmake.source-dir"] = "tools/python/built"
        rest["cmake.define.PRUN_BUILD"] = str(pathlib.Path(built).resolve())
        rest["build.targets"] = "all"
        rest["build-dir"] = "build/packed"
    return rest


def _repair(wheel: pathlib.Path, out: pathlib.Path) -> None:
    """Copies the libraries that the wheel needs into it and names the oldest glibc that it runs on."""
    scripts = pathlib.Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", str(out), str(wheel)]
    command += [word for name in LEFT_OUT for word in ("--exclude", name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"auditwheel repair failed:\n{done.stdout}{done.stderr}")


def _copy_with_glibc(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a repaired wheel and adds the file by which prun/glibc.py checks the system at import."""
    found = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if found is None:
        raise SystemExit(f"{wheel.name} names no glibc: auditwheel did not repair it")
    text = f"{found[1]}.{found[2]}\n".encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w") as new:
        new.writestr(GLIBC, text)
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                data += f"{GLIBC},sha256={digest},{len(text)}\n".encode()
            new.writestr(info, data)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return list(core.get_requires_for_build_wheel(_settings(config_settings)))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    return str(core.prepare_metadata_for_build_wheel(metadata_directory, _settings(config_settings)))


def build_wheel(wheel_directory: str, config_settings: dict[str, Any] | None = None,
                metadata_directory: str | None = None) -> str:
    """Builds the wheel into `wheel_directory` and returns its name. `built`: a finished build folder to pack."""
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as repaired:
        name = core.build_wheel(plain, _settings(config_settings), metadata_directory)
        _repair(pathlib.Path(plain, name), pathlib.Path(repaired))
        [wheel] = pathlib.Path(repaired).glob("*.whl")
        _copy_with_glibc(wheel, pathlib.Path(wheel_directory, wheel.name))
        return wheel.name
