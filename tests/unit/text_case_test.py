"""The runners of tests/golden and tests/errors against a fake prun: when they fail, their output, and the files they
rewrite.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent

FAKE = """#!/usr/bin/env python3
import os, sys
plan = sys.argv[2]
if sys.argv[1] == "dump":
    print("program", plan, *sys.argv[3:], os.environ.get("EXTRA", ""))
    print("pid", os.getpid())
elif "good" in plan:
    print("fine")
else:
    print(os.path.abspath(plan) + ":2: no axis 'pd'", file=sys.stderr)
    sys.exit(3)
"""


class Runners(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        (self.root / "tests").mkdir()
        shutil.copy(TESTS / "text_case.py", self.root / "tests")
        for part in ("golden", "errors"):
            (self.root / "tests" / part).mkdir()
            for script in (TESTS / part).glob("*.py"):
                shutil.copy(script, self.root / "tests" / part)
        self.prun = self.root / "prun"
        self.prun.write_text(FAKE)
        self.prun.chmod(0o755)

    def write(self, path, text):
        (self.root / "tests" / path).write_text(text)

    def read(self, path):
        return (self.root / "tests" / path).read_text()

    def run_part(self, part, *options):
        done = subprocess.run([sys.executable, str(self.root / "tests" / part / "run.py"), str(self.prun), *options],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_golden_passes_and_fails(self):
        self.write("golden/a.txt", "$ EXTRA=more prun dump plans/a.lua --nproc 2\n"
                                   "program plans/a.lua --nproc 2 more\npid <*>\n")
        self.assertEqual(self.run_part("golden"), (0, "1 of 1 as expected\n"))
        self.write("golden/b.txt", "$ prun dump plans/b.lua\nprogram plans/c.lua \npid <*>\n")
        code, text = self.run_part("golden")
        self.assertEqual(code, 1)
        self.assertIn("-program plans/c.lua \n", text)
        self.assertIn("+program plans/b.lua \n", text)
        self.assertIn("FAILED b\n1 of 2 as expected\n", text)
        self.assertEqual(self.run_part("golden", "a")[0], 0)

    def test_golden_update_rewrites_only_what_differs(self):
        kept = "$ prun dump plans/a.lua\nprogram plans/a.lua \npid <*>\n"
        self.write("golden/a.txt", kept)
        self.write("golden/b.txt", "$ prun dump plans/b.lua\n")
        self.assertEqual(self.run_part("golden", "--update", "a", "b")[0], 0)
        self.assertEqual(self.read("golden/a.txt"), kept)
        self.assertTrue(self.read("golden/b.txt").startswith("$ prun dump plans/b.lua\nprogram plans/b.lua \npid "))

    def test_golden_shows_a_failing_command(self):
        self.write("golden/a.txt", "$ prun check plans/a.lua\n")
        code, text = self.run_part("golden")
        self.assertEqual(code, 1)
        self.assertIn("+[exit 3]\n+plans/a.lua:2: no axis 'pd'\n", text)

    def test_no_cases_is_a_failure(self):
        self.assertEqual(self.run_part("golden")[0], 1)

    def test_errors_pass_fail_and_update(self):
        self.write("errors/axis.lua", "-- prun check PLAN --nproc 2\nreturn {}\n")
        self.assertEqual(self.run_part("errors")[0], 1)
        self.assertEqual(self.run_part("errors", "--update")[0], 0)
        self.assertEqual(self.read("errors/axis.txt"), "exit 3\ntests/errors/axis.lua:2: no axis 'pd'\n")
        self.assertEqual(self.run_part("errors"), (0, "1 of 1 as expected\n"))
        self.write("errors/axis.txt", "exit 2\ntests/errors/axis.lua:2: no axis 'pd'\n")
        self.assertEqual(self.run_part("errors")[0], 1)

    def test_errors_of_commands_are_paragraphs(self):
        self.write("errors/commands.txt", "one\n$ prun check a.lua\n\nother\n$ prun check b.lua\nexit 3\nb.lua:2: no axis 'pd'\n")
        code, text = self.run_part("errors")
        self.assertEqual(code, 1)
        self.assertIn("+a.lua:2: no axis 'pd'\n", text)
        self.assertIn("FAILED one\n1 of 2 as expected\n", text)
        self.assertEqual(self.run_part("errors", "--update", "one")[0], 0)
        self.assertEqual(self.run_part("errors"), (0, "2 of 2 as expected\n"))
        self.assertTrue(self.read("errors/commands.txt").endswith("other\n$ prun check b.lua\nexit 3\nb.lua:2: no axis 'pd'\n"))

    def test_a_program_is_shown_by_one_unit_of_a_class(self):
        sys.path.insert(0, str(TESTS / "golden"))
        import excerpt
        whole = "program  a.lua\nstep\n\n  stream compute\n    forward block0\n      0  add  x\n    forward block1\n      1  add  y\n"
        text = excerpt.excerpt(whole)
        self.assertIn("      0  add  x\n      ... 2 lines like these\n\nwhole    8 lines, sha256 ", text)
        self.assertNotEqual(text, excerpt.excerpt(whole.replace("add  y", "add  z")))  # the digest differs

    def test_a_plan_that_works_is_never_an_expected_error(self):
        self.write("errors/good.lua", "-- prun check PLAN\n")
        code, text = self.run_part("errors", "--update")
        self.assertEqual(code, 1)
        self.assertIn("an error was expected", text)
        self.assertFalse((self.root / "tests/errors/good.txt").exists())


if __name__ == "__main__":
    unittest.main()
