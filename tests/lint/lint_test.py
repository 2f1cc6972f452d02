#!/usr/bin/env python3
"""The lines that clang-tidy reads, in repositories made for the test, and its report about sources left for lack of
time.
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import lint  # noqa: E402

HOUR = 3600
NOW = 1_700_000_000


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        top = mock.patch.object(lint, "TOP", self.top)
        top.start()
        self.addCleanup(top.stop)
        self.git("init", "-q", "-b", "main")

    def git(self, *words, hours_ago=0.0):
        when = f"{NOW - int(hours_ago * HOUR)} +0000"
        names = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", *words], cwd=self.top, check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, **names, "GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when})

    def commit(self, name, text, hours_ago):
        path = self.top / "runtime" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name, hours_ago=hours_ago)

    def test_on_main_a_whole_landing_is_read(self):
        self.commit("old.cc", "1\n2\n3\n", 30)
        self.commit("a.cc", "1\n2\n", 3)
        self.commit("old.cc", "1\nsecond\n3\n", 2)
        self.commit("b.cc", "1\n", 0)
        self.assertEqual(lint.changed(), {"runtime/old.cc": [[2, 2]], "runtime/a.cc": [[1, 2]], "runtime/b.cc": [[1, 1]]})

    def test_a_younger_history_is_read_whole(self):
        self.commit("a.cc", "1\n", 1)
        self.commit("b.cc", "1\n", 0)
        self.assertEqual(sorted(lint.changed()), ["runtime/a.cc", "runtime/b.cc"])

    def test_on_a_branch_what_it_adds_to_main(self):
        self.commit("old.cc", "1\n", 30)
        self.commit("main.cc", "1\n", 3)
        self.git("checkout", "-q", "-b", "branch")
        self.commit("branch.cc", "1\n", 0)
        self.assertEqual(list(lint.changed()), ["runtime/branch.cc"])

    def tidy(self, seconds, *words):
        (self.top / "build/dev").mkdir(parents=True)
        sources = [each for each in self.top.glob("runtime/*.cc") if each.name != "ucx.cc"]
        (self.top / "build/dev/compile_commands.json").write_text(json.dumps([{"file": str(each)} for each in sources]))
        program = self.top / "bin/clang-tidy"
        program.parent.mkdir()
        program.write_text('#!/bin/sh\nfor last; do :; done\n! grep -q wrong "$last"\n')
        program.chmod(0o755)
        said = io.StringIO()
        with mock.patch.object(lint, "TIDY_SECONDS", seconds), mock.patch.object(sys, "argv", ["lint.py", *words]), \
                mock.patch.dict(os.environ, PATH=f"{program.parent}:{os.environ['PATH']}"), contextlib.redirect_stdout(said):
            return lint.clang_tidy(), said.getvalue()

    def test_sources_left_are_said(self):
        self.commit("a.cc", "1\n", 1)
        self.commit("b.cc", "1\n2\n", 0)
        self.assertEqual(self.tidy(-1), (lint.SKIPPED, "clang-tidy: 2 of 2 sources are not checked, for want of time: runtime/b.cc, runtime/a.cc\n"))

    def test_on_request_no_source_is_left(self):
        self.commit("a.cc", "1\n", 1)
        self.commit("b.cc", "1\n2\n", 0)
        self.assertEqual(self.tidy(-1, "--changed"), (0, ""))

    def test_what_is_not_configured_is_said(self):
        self.commit("a.cc", "1\n", 1)
        self.commit("ucx.cc", "wrong\n", 0)
        self.assertEqual(self.tidy(60), (lint.SKIPPED, "clang-tidy: not configured here, so not checked: runtime/ucx.cc\n"))

    def test_a_finding_fails(self):
        self.commit("a.cc", "wrong\n", 1)
        self.commit("b.cc", "1\n", 0)
        self.assertEqual(self.tidy(60)[0], 1)

    def test_all_is_well(self):
        self.commit("b.cc", "1\n", 0)
        self.assertEqual(self.tidy(60), (0, ""))

    def test_a_landing_may_be_large(self):
        self.commit("a.cc", "1\n" * 40_000, 30)
        self.commit("a.cc", "1\n2\n" * 20_000, 0)
        self.assertEqual(self.tidy(60), (0, ""))
        self.assertGreater((self.top / lint.DATABASE / "options").stat().st_size, 128 * 1024)

    def test_a_source_has_one_command_and_not_that_of_a_test(self):
        (self.top / "build/dev").mkdir(parents=True)
        file = str(self.top / "plugins/cuda/gemm/gemm.cc")
        commands = [{"file": file, "command": f"c++ -o {output} -c {file}"} for output in ("tests/substitutes/gemm.cc.o", "plugins/cuda/gemm/gemm.cc.o")]
        (self.top / "build/dev/compile_commands.json").write_text(json.dumps(commands))
        self.assertEqual(len(lint.one_command_each()), 1)
        self.assertEqual(json.loads((self.top / lint.DATABASE / "compile_commands.json").read_text()), commands[1:])


if __name__ == "__main__":
    unittest.main()
