#!/usr/bin/env python3
"""tools/run in a fresh tree: which targets are built before the run, which during it, and the state after Ctrl-C; in
a copied, a moved and a read-only tree. tools/test --ci: which packages are installed before, and which during a build.

cmake, ninja and the programs are scripts in a folder of their own: Ninja "builds" a target by writing a script that
prints its own name, and bin/prun as soon as the tree has the file `go`. Standard library only.
"""
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent

NINJA = """#!/bin/bash
# ninja -C BUILD [-n] TARGET...
cd "$2" || exit 1
shift 2
missing=()
for target in "$@"; do [ "$target" = -n ] || [ -e "bin/$target" ] || missing+=("$target"); done
if [ "$1" = -n ]; then [ ${#missing[@]} -gt 0 ] || echo 'ninja: no work to do.'; exit 0; fi
trap 'echo interrupted >>events; exit 130' INT TERM
for target in "${missing[@]}"; do
  echo "begin $target" >>events
  while [ "$target" = prun ] && [ ! -e ../../go ]; do sleep 0.05; done
  printf '#!/bin/bash\\necho "%s $*" | tee -a build/release/events\\n[ -z "${RUNS-}" ] || exec sleep "$RUNS"\\n' "$target" >"bin/$target"
  chmod +x "bin/$target"
  echo "end $target" >>events
done
"""
CMAKE = """#!/bin/bash
mkdir -p build/release/bin && touch build/release/build.ninja && touch build/release/events
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$2" >build/release/CMakeCache.txt
"""


class FreshTree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.top = pathlib.Path(self.folder.name)
        (self.top / "tools").mkdir()
        for name in ("run", "setup.sh"):
            shutil.copy(TOP / "tools" / name, self.top / "tools")
        (self.top / "tools/packages.txt").write_text("")
        (self.top / "path").mkdir()
        for name, text in (("ninja", NINJA), ("cmake", CMAKE)):
            (self.top / "path" / name).write_text(text)
            (self.top / "path" / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{self.top / 'path'}:{os.environ['PATH']}"}
        self.build = self.top / "build/release"
        self.addCleanup(self.finish)

    def go_on(self):
        (self.top / "go").touch()

    def finish(self):
        """Waits until no build is running."""
        self.go_on()
        self.build.mkdir(parents=True, exist_ok=True)
        with (self.build / "setup.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def start(self, *words, **environment):
        return subprocess.Popen([self.top / "tools/run", *words], cwd=self.top, text=True, start_new_session=True,
                                env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_tool(self, *words, **environment):
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        return out, err

    def events(self):
        path = self.build / "events"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, event):
        until = time.monotonic() + 20
        while event not in self.events():
            self.assertLess(time.monotonic(), until, self.events())
            time.sleep(0.02)

    def test_a_plan_runs_before_the_other_commands_are_built(self):
        out, err = self.run_tool("plans/x.lua", "--nproc", "8")
        self.assertEqual(out, "prun_first plans/x.lua --nproc 8\n")
        self.assertIn("building the other commands in the background", err)
        self.assertNotIn("end prun", self.events())
        self.finish()
        out, err = self.run_tool("plans/x.lua")
        self.assertEqual((out, err), ("prun plans/x.lua\n", ""))

    def test_another_command_waits_for_the_build(self):
        self.run_tool("plans/x.lua")
        process = self.start("check", "plans/x.lua")
        self.assertEqual(process.stderr.readline(), "prun: waiting for the build of build/release that already runs\n")
        self.go_on()
        self.assertEqual(process.communicate(timeout=30)[0], "prun check plans/x.lua\n")
        self.assertEqual(self.events().count("begin prun"), 1)

    def test_another_command_is_built_whole(self):
        self.go_on()
        out, err = self.run_tool("check", "plans/x.lua")
        self.assertEqual(out, "prun check plans/x.lua\n")
        self.assertNotIn("background", err)
        self.assertNotIn("begin prun_first", self.events())

    def test_two_plans_at_once(self):
        both = [self.start("plans/x.lua"), self.start("plans/y.lua")]
        for process, plan in zip(both, "xy"):
            out, err = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, err)
            self.assertEqual(out, f"prun_first plans/{plan}.lua\n")
        self.finish()
        self.assertEqual([self.events().count(f"begin {name}") for name in ("prun_first", "prun")], [1, 1])

    def test_ctrl_c_ends_the_build_too(self):
        process = self.start("plans/x.lua", RUNS="30")
        self.wait_for("begin prun")
        self.wait_for("prun_first plans/x.lua")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=10)
        self.wait_for("interrupted")
        self.assertNotIn("end prun", self.events())
        self.assertEqual(self.run_tool("plans/x.lua")[0], "prun_first plans/x.lua\n")

    def test_the_build_names_its_process_for_after_the_plan(self):
        """After the plan Ctrl-C does not reach the build, whose process group is no longer in the foreground."""
        _, err = self.run_tool("plans/x.lua")
        self.wait_for("begin prun")
        os.kill(int(re.search(r"later: kill (\d+)$", err, re.M)[1]), signal.SIGTERM)
        self.wait_for("interrupted")
        self.assertNotIn("end prun", self.events())

    def run_in(self, top, *words, path="", **how):
        """Runs the tools/run of a tree; returns the exit code and both streams. `path`: the first folder of PATH."""
        environment = {**self.environment, "PATH": f"{path}:{self.environment['PATH']}"} if path else self.environment
        done = subprocess.run([top / "tools/run", *words], cwd=top, text=True, capture_output=True, timeout=30,
                              env=environment, **how)
        return done.returncode, done.stdout, done.stderr

    def test_a_copied_and_a_moved_clone_build_their_own_sources(self):
        self.go_on()
        self.run_tool("check", "plans/x.lua")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        copy, moved = (pathlib.Path(folder.name) / name for name in ("copy", "moved"))
        shutil.copytree(self.top, copy)
        (copy / "build/release/bin/of_the_original").touch()
        for before, top in ((self.top, copy), (copy, moved)):
            if top == moved:
                copy.rename(moved)
            code, out, err = self.run_in(top, "check", "plans/x.lua")
            self.assertEqual((code, out), (0, "prun check plans/x.lua\n"), err)
            self.assertIn(f"prun: build/release was configured in {before}; building it for {top}\n", err)
            self.assertFalse((top / "build/release/bin/of_the_original").exists())
            self.assertEqual(self.run_in(top, "check", "plans/x.lua"), (0, "prun check plans/x.lua\n", ""))

    def run_without_writing(self, *words, path=""):
        """run_in as a user who may only read the tree."""
        if os.geteuid() == 0:
            return self.run_in(self.top, *words, path=path, user=65534, group=65534)
        tree = [self.top, *self.top.rglob("*")]
        for each in tree:
            each.chmod(each.stat().st_mode & 0o555)
        try:
            return self.run_in(self.top, *words, path=path)
        finally:
            for each in tree:
                each.chmod(each.stat().st_mode | 0o200)

    def test_a_clone_that_one_may_not_write_to(self):
        self.top.chmod(0o755)
        refusal = (f"prun: cannot build in {{}}, which belongs to [^ ]+: Permission denied\n"
                   f"prun: run this command once as a user who can write there, or copy {self.top} and .*\n")
        code, out, err = self.run_without_writing("plans/x.lua")
        self.assertEqual((code, out), (2, ""))
        self.assertRegex(err, f"^{refusal.format(self.top)}$")
        self.go_on()
        self.run_tool("check", "plans/x.lua")
        (self.top / "other").mkdir()
        (self.top / "other/nvcc").touch(mode=0o755)
        for path in ("", self.top / "other"):  # with nvcc in PATH the stamp differs
            code, out, err = self.run_without_writing("check", "plans/x.lua", path=path)
            self.assertEqual((code, out), (0, "prun check plans/x.lua\n"), err)
            self.assertNotIn("setup", err)
        code, out, err = self.run_without_writing("conform", "shm")  # has targets that were not built
        self.assertEqual((code, out), (2, ""))
        self.assertRegex(err, f"^{refusal.format(self.build)}$")


class Packages(unittest.TestCase):
    """apt-get "installs" the late packages only after the first build, so they must be installed in the background."""

    PROGRAMS = {
        "id": "echo 0",
        "dpkg-query": "sed 's/^/installed /' installed",
        "apt-get": """[ "$2" = install ] || exit 0
shift 4
echo "install $*" >>events
if [[ $* == *late* ]]; then
  until grep -qx 'built asan fast_tests' events; do sleep 0.05; done
  if [ -n "${REFUSED-}" ]; then exit 100; fi
fi
printf '%s\\n' "$@" >>installed
echo "installed $*" >>events""",
        "cmake": """mkdir -p "build/$4/bin" && touch "build/$4/build.ninja\"""",
        "ninja": """build=$2
shift 2
if [ "$1" = -n ]; then [ ! -e "$build/bin/$2" ] || echo 'ninja: no work to do.'; exit 0; fi
while [[ $build = *asan ]] && ! grep -q late events; do sleep 0.05; done
touch "$build/bin/$1"
echo "built $(basename "$build") $1" >>events""",
        "ctest": "echo tested >>events"}

    def test_ci_installs_during_the_first_build(self):
        code, events = self.run_ci()
        self.assertEqual(code, 0)
        self.assertEqual(events[:2], ["install base python3", "installed base python3"])
        self.assertEqual(events[2:4], ["install late clang benchmark", "built asan fast_tests"])
        self.assertLess(events.index("installed late clang benchmark"), events.index("built ci all"))
        self.assertEqual(events[-2:], ["built ci all", "tested"])

    def test_ci_ends_if_packages_are_missing(self):
        code, events = self.run_ci(REFUSED="1")
        self.assertEqual(code, 2)
        self.assertNotIn("built ci all", events)
        self.assertNotIn("tested", events)

    def run_ci(self, **environment):
        """Returns the exit code of tools/test --ci in a fresh tree, and the events in order."""
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "tools").mkdir()
            for name in ("test", "setup.sh"):
                shutil.copy(TOP / "tools" / name, top / "tools")
            (top / "tools/packages.txt").write_text("base\ntest late\nlint clang\nbench benchmark\n")
            (top / "installed").touch()
            (top / "path").mkdir()
            for name, text in self.PROGRAMS.items():
                (top / "path" / name).write_text(f"#!/bin/bash\n{text}\n")
                (top / "path" / name).chmod(0o755)
            done = subprocess.run([top / "tools/test", "--ci"], cwd=top, capture_output=True, timeout=30, check=False,
                                  env={**os.environ, **environment, "PATH": f"{top / 'path'}:{os.environ['PATH']}"})
            return done.returncode, (top / "events").read_text().splitlines()


if __name__ == "__main__":
    unittest.main()
