#!/usr/bin/env python3
"""Follows plugins/README.md verbatim: its C++ is mail.cc, its CMake is CMakeLists.txt, its shell lines run in order.

Usage: guide_test.py BUILD. Standard library only.
"""
import pathlib
import re
import sys
import tempfile

from installed_test import ROOT, run


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def main(build):
    text = (ROOT / "plugins/README.md").read_text()
    with tempfile.TemporaryDirectory(prefix="prun_guide_") as folder:
        here = pathlib.Path(folder)
        run("cmake", "--install", build, "--prefix", here / "prefix")
        code = "".join(blocks(text, "cpp"))
        assert code.count("\n") < 120, "the guide promises a short plugin"
        (here / "mail.cc").write_text(code)
        (here / "CMakeLists.txt").write_text("".join(blocks(text, "cmake")))
        environment = {"PREFIX": str(here / "prefix"), "CXXFLAGS": "-Wall -Wextra -Werror"}
        script = f'set -e\nPATH="{here}/prefix/bin:$PATH"\n' + "".join(blocks(text, "sh"))
        output = run("bash", "-c", script, env=environment, cwd=here)
    for line in ("mail       1.0.0    files in the receiver's folder", "mail: 5 of its items hold, 0 fail", "# Out of bounds values : 0 OK"):
        assert line in output, output
    print(output)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
