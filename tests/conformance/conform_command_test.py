#!/usr/bin/env python3
"""`prun conform`: one line per item, and an exit status that distinguishes good and bad plugins.

Usage: conform_command_test.py PRUN PLUGINS. Other tests run the suite; this one runs two short items.
"""
import json
import pathlib
import subprocess
import sys
import unittest

PRUN, PLUGINS = "", pathlib.Path()


def conform(*words):
    done = subprocess.run([PRUN, "conform", *map(str, words)], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=250)
    return done.returncode, done.stdout


def lines_of(text):
    """Returns {item: text after it in its line}."""
    rows = [line.split(maxsplit=2) for line in text.splitlines()]
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0].isdigit()}


class Conform(unittest.TestCase):
    def test_a_good_plugin_by_name(self):
        status, text = conform("shm", "queue", "misuse")
        self.assertEqual(status, 0, text)
        self.assertEqual(lines_of(text)["queue"], "not claimed")
        self.assertEqual(lines_of(text)["misuse"], "ok      sizes, types and calls that differ are errors, never data")
        self.assertTrue(text.endswith("shm: 1 of its items hold, 0 fail\n"), text)

    def test_one_by_path(self):
        status, text = conform(PLUGINS / "pipe.so", "load", "groups")
        self.assertEqual((status, sorted(lines_of(text))), (0, ["groups", "load"]), text)

    def test_one_that_cannot_be_loaded(self):
        status, text = conform(PLUGINS / "bad/missing.so")
        self.assertEqual(status, 1)
        lines = lines_of(text)
        self.assertEqual(len(lines), 14, text)
        self.assertRegex(lines["load"], r"^FAILED  .*\(Open\.SaysWhatItIs\)$")
        self.assertIn("the mandatory function 'batch' is missing", lines["load"])
        self.assertEqual(lines["messages"], "FAILED  not tried: it does not load")

    def test_one_that_loads_and_does_nothing(self):
        status, text = conform(PLUGINS / "bad/longer.so", "messages")
        self.assertEqual(status, 1)
        self.assertIn("this plugin only gets loaded", text)

    def test_as_json(self):
        status, text = conform("shm", "queue", "load:SaysWhatItIs", "--json")
        rows = [json.loads(line) for line in text.splitlines()]
        self.assertEqual((status, [(row["item"], row["result"]) for row in rows]),
                         (0, [("load", "ok"), ("queue", "not claimed")]), text)
        status, text = conform(PLUGINS / "bad/missing.so", "--json")
        rows = [json.loads(line) for line in text.splitlines()]
        self.assertEqual((status, {row["result"] for row in rows[1:]}), (1, {"not tried"}), text)
        self.assertEqual((rows[0]["result"], rows[0]["case"]), ("failed", "Open.SaysWhatItIs"))

    def test_help(self):
        status, text = conform("--help")
        self.assertEqual(status, 0)
        for word in ("prun conform PLUGIN [ITEM]", "--transport-options", "--json", "--timeout"):
            self.assertIn(word, text)

    def test_words_that_are_wrong(self):
        self.assertEqual(conform(), (2, "prun: which plugin? For example: prun conform shm, or prun conform "
                                        "build/lib/prun/plugins/mine.so\n"))
        self.assertEqual(conform("./none.so"), (2, "prun: there is no plugin ./none.so\n"))
        status, text = conform("shm", "mesages")
        self.assertEqual(status, 2)
        self.assertIn("prun conform: there is no item 'mesages' (did you mean 'messages'?); the items are load,", text)
        status, text = conform("shm", "messages:LanesPassEachOthr")
        self.assertEqual(status, 2)
        self.assertIn("there is no case 'LanesPassEachOthr' (did you mean 'LanesPassEachOther'?)", text)


if __name__ == "__main__":
    PRUN, PLUGINS = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
