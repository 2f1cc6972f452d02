#!/usr/bin/env python3
"""`prun plans`: its list, as text and as JSON, in this repository and in an installation with plans of all kinds.
Usage: plans_test.py PRUN TOP
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PRUN, TOP = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()

PLAN = """-- A plan
-- in two lines: it has words. This is not shown.

local prun = require "prun"
local arg = prun.args { width = { 4, "of all" }, rate = 0.5, name = "x", sizes = { 1, 2 }, deep = true, room = math.huge }
error "never reached"
"""


def plans(program, *options):
    done = subprocess.run([program, "plans", *options], cwd="/", text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout


class Plans(unittest.TestCase):
    def test_every_plan_has_a_line_and_a_sentence(self):
        lines = plans(PRUN).splitlines()
        found = [line.split()[0] for line in lines]
        self.assertEqual(set(found) & {"plans/zero3.lua", "plans/collectives.lua"}, {"plans/zero3.lua", "plans/collectives.lua"})
        self.assertEqual(found, sorted(found, key=lambda path: ("custom" in path, path)))
        for line in lines:
            self.assertRegex(line, r"^plans/(custom/)?[\w-]+\.lua +\S[^\n]*$")
        mine = {str(p.relative_to(TOP)) for p in (TOP / "plans").glob("*.lua")}
        self.assertEqual({path for path in found if "custom" not in path}, mine)

    def test_json_has_the_same_and_the_arguments(self):
        rows = json.loads(plans(PRUN, "--json"))["plans"]
        self.assertEqual([row["path"] for row in rows], [line.split()[0] for line in plans(PRUN).splitlines()])
        for row in rows:
            self.assertEqual(set(row), {"name", "path", "description", "arguments", "error"})
            self.assertEqual(row["error"], "")
            for argument in row["arguments"]:
                self.assertEqual(set(argument), {"name", "kind", "default", "help", "tune"})
                self.assertTrue(argument["help"], f"{row['path']}: {argument['name']} has no help")

    def test_an_installation_with_plans_of_all_kinds(self):
        with tempfile.TemporaryDirectory() as folder:
            share = pathlib.Path(folder, "share/prun")
            shutil.copytree(TOP / "lua", share / "lua")
            (share / "plans/custom").mkdir(parents=True)
            pathlib.Path(folder, "bin").mkdir()
            program = shutil.copy(PRUN, pathlib.Path(folder, "bin/prun"))
            (share / "plans/whole.lua").write_text(PLAN)
            (share / "plans/custom/silent.lua").write_text("local prun = require 'prun'\nreturn prun.program(function() prun.full(1, 2) end)\n")
            (share / "plans/custom/strategy.lua").write_text("-- No plan.\nreturn require 'prun'.strategy('s', { axis = 'dp' }, function() end)\n")
            (share / "plans/custom/broken.lua").write_text("-- Broken.\nlocal x = = 2\n")
            lines = plans(program).splitlines()
            self.assertEqual(len(lines), 3, lines)
            self.assertRegex(lines[0], r"^plans/whole\.lua +A plan in two lines: it has words\.$")
            self.assertRegex(lines[1], r"^plans/custom/broken\.lua +cannot be read: .*broken\.lua:2: ")
            self.assertRegex(lines[2], r"^plans/custom/silent\.lua *$")
            whole = json.loads(plans(program, "--json"))["plans"][0]
            self.assertEqual(whole["name"], "whole")
            self.assertEqual(
                {a["name"]: (a["kind"], a["default"], a["help"]) for a in whole["arguments"]},
                {"width": ("integer", 4, "of all"), "rate": ("number", 0.5, ""), "name": ("text", "x", ""),
                 "sizes": ("numbers", [1, 2], ""), "deep": ("boolean", True, ""), "room": ("number", "inf", "")})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
