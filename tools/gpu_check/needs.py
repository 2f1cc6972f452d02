"""What a package needs of the machine that it runs on: the versions of the C and C++ libraries that its programs ask for.

An older library would end each program with the loader's message; gpu-check reports it once, before it starts any.
"""
import json
import os
import pathlib
import re

from gpu_check import libraries

FILE = "needs.json"  # in the package's top folder
LIBRARIES = {"GLIBC": "glibc", "GLIBCXX": "libstdc++ (symbols GLIBCXX)"}


def symbols_of(file):
    """{"GLIBC": {(2, 34), ...}, "GLIBCXX": ...}: versions of symbols that the file names."""
    found = {}
    for name, version in re.findall(rb"(GLIBC(?:XX)?)_([0-9.]+[0-9])\0", pathlib.Path(file).read_bytes()):  # a literal first: fast
        found.setdefault(name.decode(), set()).add(tuple(map(int, version.split(b"."))))
    return found


def newest(files):
    """{"GLIBC": "2.34", "GLIBCXX": "3.4.30"}: the newest versions that they need."""
    found = {}
    for file in files:
        for name, versions in symbols_of(file).items():
            found[name] = max(found.get(name, ()), *versions)
    return {name: ".".join(map(str, version)) for name, version in sorted(found.items())}


def write(path, versions, library_path):
    """`library_path`: the folder of packed libraries from the package's top, for programs that do not find it; else ""."""
    path.write_text(json.dumps({"versions": versions, "library_path": library_path}, indent=1) + "\n")


def read(top):
    """The needs of the package that this gpu-check is in, or None outside of one."""
    path = top / FILE
    return json.loads(path.read_text()) if path.exists() else None


def here():
    """{"GLIBC": "2.36", "GLIBCXX": "3.4.30"} of this machine; a library that is not found is missing."""
    found = {}
    libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    if len(libc) == 2:
        found["GLIBC"] = libc[1]
    path = libraries.system().get("libstdc++.so.6")
    if path:
        found["GLIBCXX"] = newest([path]).get("GLIBCXX", "0")
    return found


def unmet(needs):
    """"" or what this machine lacks, with the fix."""
    there = here()
    for name, version in needs["versions"].items():
        have = there.get(name)
        if have is None and name == "GLIBCXX":
            continue  # without a loader cache nothing is known; the loader will decide
        if have is None or tuple(map(int, have.split("."))) < tuple(map(int, version.split("."))):
            return (f"this package needs {LIBRARIES[name]} {version} or newer, and this machine has {have or 'none'}: "
                    f"build it where that is at most {have or 'as old'} (tools/gpu-check --pack there)")
    return ""
