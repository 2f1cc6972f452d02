#!/usr/bin/env python3
"""Installs a build into a temporary prefix and uses it like a user without the sources: the program, the CMake package,
the pkg-config file.

Usage: installed_test.py BUILD. Standard library only.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PIPE = ROOT / "tests/conformance/pipe_plugin.cc"
BUILD = ""


def run(*command, env=None, **options):
    """Returns the output of a command that must succeed, in an environment without this build or its user's settings.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PRUN_", "CMAKE_", "PKG_"))}
    done = subprocess.run([str(word) for word in command], env={**clean, **(env or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}")
    return done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="prun_sdk_")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.here = pathlib.Path(cls.folder.name)
        # The prefix is moved after installation, so that no absolute path in it works.
        run("cmake", "--install", BUILD, "--prefix", cls.here / "first")
        cls.prefix = cls.here / "moved here"
        (cls.here / "first").rename(cls.prefix)

    def prun(self, *words, **env):
        return run(self.prefix / "bin/prun", *words, cwd=self.here, env=env)

    def check_pipe(self, folder):
        self.assertIn("pipe       1.0.0", self.prun("plugins", PRUN_PLUGIN_PATH=str(folder)))
        text = self.prun("plans/collectives.lua", "--nproc", 2, "--transport", "pipe", PRUN_PLUGIN_PATH=str(folder))
        self.assertIn("all_reduce", text)

    def test_the_program_finds_what_is_its(self):
        plugins = self.prun("plugins")
        for name in ("shm", "socket"):
            self.assertIn(name, plugins)
            self.assertIn("auto = 1", (self.prefix / f"lib/prun/plugins/{name}.plugin").read_text())
        self.assertIn("plans/zero3.lua", self.prun("plans"))
        self.prun("plans/ddp_simple.lua", "--nproc", 2)

    def test_cmake(self):
        source, build = self.here / "outside", self.here / "outside build"
        source.mkdir()
        shutil.copy(PIPE, source)
        shutil.copy(HERE / "outside.cmake", source / "CMakeLists.txt")
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        plugins = build / "lib/prun/plugins"
        self.assertEqual((plugins / "pipe.plugin").read_text(), "auto = 0\nlocal_only = 1\nmemory = host\n")
        defined = [line.split()[-1] for line in
                   run("nm", "--dynamic", "--defined-only", plugins / "pipe.so").splitlines()
                   if "prun" in line]
        self.assertEqual(defined, ["prun_transport_v1"])
        self.check_pipe(plugins)
        # Installed into prun's prefix, it needs no environment variable.
        run("cmake", "--install", build, "--prefix", self.prefix)
        self.addCleanup(lambda: [f.unlink() for f in self.prefix.glob("lib/prun/plugins/pipe.*")])
        self.assertIn("pipe       1.0.0", self.prun("plugins"))

    def test_pkg_config(self):
        config = {"PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        plugindir = run("pkg-config", "--variable=plugindir", "prun", env=config).strip().replace("\\ ", " ")
        self.assertTrue(os.path.samefile(plugindir, self.prefix / "lib/prun/plugins"), plugindir)
        folder = self.here / "by hand"
        folder.mkdir()
        run("sh", "-c", f'eval c++ -std=c++20 -O1 -shared -fPIC $(pkg-config --cflags prun) "{PIPE}" $(pkg-config --libs --static prun) -o pipe.so',
            env=config, cwd=folder)
        self.check_pipe(folder)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
