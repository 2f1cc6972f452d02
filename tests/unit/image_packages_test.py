#!/usr/bin/env python3
"""The images of tools/clusters install the Debian package of every library that the program is linked to.

    tests/unit/image_packages_test.py PRUN
"""
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
OF_THE_BASE = {"libc6", "libstdc++6", "libgcc-s1"}  # of debian:12 itself


def needed_packages(prun):
    """Returns {library: package} for the libraries in the program's own dynamic entries."""
    entries = subprocess.run(["readelf", "-d", prun], check=True, capture_output=True, text=True).stdout
    found = dict(line.split(" => ") for line in
                 re.findall(r"^\s*(\S+ => \S+)", subprocess.run(["ldd", prun], check=True, capture_output=True, text=True).stdout, re.M))
    packages = {}
    for library in re.findall(r"\(NEEDED\).*\[(.+)\]", entries):
        if library.startswith("ld-linux"):
            continue
        file = pathlib.Path(found[library]).resolve()
        owner = subprocess.run(["dpkg", "-S", f"*/{file.parent.name}/{file.name}"], check=True, capture_output=True, text=True).stdout
        packages[library] = owner.split(":")[0]
    return packages


def main():
    packages = needed_packages(sys.argv[1])
    assert len(packages) > 5, packages
    for name in ("Dockerfile", "Dockerfile.cuda"):
        named = set((TOP / "tools/clusters" / name).read_text().split("FROM")[-1].split())
        missing = {library: package for library, package in packages.items() if package not in named | OF_THE_BASE}
        assert not missing, f"tools/clusters/{name} installs no package for {missing}"


main()
