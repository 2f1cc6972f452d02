"""A package's requirements: the versions of the C and C++ libraries that its programs were linked against.

With an older library each program would end with the loader's message; gpu-check reports it once, before it starts any.
"""
import json
import os
import pathlib
import re

from gpu_check import libraries

FILE = "needs.json"  # in the package's top folder
LIBRARIES = {"GLIBC": "glibc", "GLIBCXX": "libstdc++ (symbols GLIBCXX)"}


def symbols_of(file):
    """Returns {"GLIBC": {(2, 34), ...}, "GLIBCXX": ...}: the symbol versions that the file names."""
    found = {}
    for name, version in re.findall(rb"(GLIBC(?:XX)?)_([0-9.]+[0-9])\0", pathlib.Path(file).read_bytes()):  # fast, because the pattern begins with a literal
        found.setdefault(name.decode(), set()).add(tuple(map(int, version.split(b"."))))
    return found


def newest(files):
    """Returns {"GLIBC": "2.34", "GLIBCXX": "3.4.30"}: the newest versions that the files need."""
    found = {}
    for file in files:
        for name, versions in symbols_of(file).items():
            found[name] = max(found.get(name, ()), *versions)
    return {name: ".".join(map(str, version)) for name, version in sorted(found.items())}


def write(path, versions, library_path):
    """Writes needs.json. `library_path`: the folder of packed libraries from the package's top, if programs do not find
    it by RPATH; otherwise ""."""
    path.write_text(json.dumps({"versions": versions, "library_path": library_path}, indent=1) + "\n")


def read(top):
    """Returns the needs of the package that contains this gpu-check, or None outside of a package."""
    path = top / FILE
    return json.loads(path.read_text()) if path.exists() else None


def here():
    """Returns {"GLIBC": "2.36", "GLIBCXX": "3.4.30"} of this machine; a library that is not found is omitted."""
    found = {}
    libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    if len(libc) == 2:
        found["GLIBC"] = libc[1]
    path = libraries.system().get("libstdc++.so.6")
    if path:
        found["GLIBCXX"] = newest([path]).get("GLIBCXX", "0")
    return found


def unmet(needs):
    """Returns the unmet requirement with its fix, or ""."""
    there = here()
    for name, version in needs["versions"].items():
        have = there.get(name)
        if have is None and name == "GLIBCXX":
            continue  # unknown without a loader cache; the loader will decide
        if have is None or tuple(map(int, have.split("."))) < tuple(map(int, version.split("."))):
            return (f"this package needs {LIBRARIES[name]} {version} or newer, and this machine has {have or 'none'}: "
                    f"build it where that is at most {have or 'as old'} (tools/gpu-check --pack there)")
    return ""
