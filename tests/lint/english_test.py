"""The findings of english.py in comments of each language, and text that it ignores."""
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import english  # noqa: E402


class English(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        for name, value in (("TOP", self.top), ("ALLOWED", self.top / "english.txt")):
            patch = mock.patch.object(english, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        subprocess.run(["git", "init", "-q"], cwd=self.top, check=True)

    def write(self, name, text):
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        subprocess.run(["git", "add", name], cwd=self.top, check=True)

    def run_lint(self, *arguments):
        """Returns (exit code, standard output)."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = english.main(list(arguments))
        return code, out.getvalue()

    def test_each_language_has_its_comments_read(self):
        for name, text, line in (("a.cc", "int a;  // Of a step, the bytes\n", 1),
                                 ("b.h", "// Returns the bytes.\n// Nor does it block.\nint b;\n", 1),
                                 ("b.c", "int b; /* bytes */\n/* Returns the bytes.\n * Of a step, all. */\n", 2),
                                 ("c.py", '"""Counts.\n\nWho waits is named."""\n', 1),
                                 ("d.lua", "local d = 1\n-- added up over ranks\n", 2),
                                 ("CMakeLists.txt", "\n# Else it is built.\n", 2),
                                 ("f.js", "let f;  // Of a step\n", 1),
                                 ("g.css", "/* Of a step */\n", 1),
                                 ("h.yaml", "h: 1  # Of a step\n", 1),
                                 ("script", "#!/bin/bash\n# Of a step\n", 2),
                                 ("program", '#!/usr/bin/env python3\n"""Of a step."""\n', 2),
                                 ("e.md", "# Title\n\nThe launcher says\nso.\n", 3)):
            self.write(name, text)
            code, out = self.run_lint(name)
            self.assertEqual(code, 1, name)
            self.assertIn(f"{name}:{line}: ", out)

    def test_a_sentence_may_begin_on_the_line_before(self):
        self.write("a.cc", "// Bytes. Of what was\n// sent, half.\n")
        self.assertIn("write a sentence with a subject", self.run_lint("a.cc")[1])

    def test_code_and_quoted_text_are_no_comments(self):
        self.write("a.cc", 'auto text = "// Of a step";  // bytes sent\nstd::string Of = "who waits";\n')
        self.write("b.md", "Run `who waits`.\n\n```\nOf a step\n```\n")
        self.assertEqual(self.run_lint("."), (0, ""))

    def test_a_word_may_be_fine_in_its_place(self):
        self.write("a.cc", "// The crowd knows. english: fine\n")
        self.assertEqual(self.run_lint("a.cc")[0], 0)
        self.write("a.cc", "// The crowd knows. english: fine\n// The rank knows.\n")
        self.assertEqual(self.run_lint("a.cc")[1], "a.cc:1: 'knows': write need, request, have, detect, join\n")

    def test_parts_of_words_are_not_found(self):
        self.write("a.cc", "// The keywords of the plan, and masks ahead.\n")
        self.assertEqual(self.run_lint("a.cc"), (0, ""))

    def test_a_path_without_files_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "git tracks no file below no/such"):
            self.run_lint("no/such")

    def test_products_are_reported_in_folders_of_gemm_kernels(self):
        for folder, code in (("runtime/kernels", 1), ("runtime/ir", 0)):
            self.write(f"{folder}/a.cc", "// The product of both.\n")
            self.assertEqual(self.run_lint(folder)[0], code, folder)

    def test_old_findings_are_allowed_and_new_ones_are_not(self):
        self.write("a.cc", "// Of a step\n")
        self.run_lint("--update")
        self.assertEqual(self.run_lint(), (0, ""))
        self.write("a.cc", "// Of a step\n\n// Nor of two\n")
        code, out = self.run_lint()
        self.assertEqual(code, 1)
        self.assertIn("a.cc:3: 'Nor'", out)
        self.write("b.cc", "// Of a step\n")
        self.assertIn("b.cc:1", self.run_lint()[1])


if __name__ == "__main__":
    unittest.main()
