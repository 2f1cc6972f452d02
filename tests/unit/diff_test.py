#!/usr/bin/env python3
"""prun diff --cluster: its step times are those of prun sim, and the causes sum to their difference."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRUN = str(pathlib.Path(sys.argv[1]).resolve())
A100, LAPTOPS = "plans/clusters/dgx-a100.yaml", "plans/clusters/laptops.yaml"
SMALL = ["--set", "width=128", "--set", "context=32", "--set", "batch=32"]


def prun(*words):
    with tempfile.TemporaryDirectory() as nothing:  # no calibration
        done = subprocess.run([PRUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=120,
                              env=os.environ | {"XDG_CONFIG_HOME": nothing, "NO_COLOR": "1"})
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def sim(*words):
    return json.loads(prun("sim", *words, "--json"))


# first plan, second plan, arguments of both, arguments of the second
PAIRS = [("zero3", "zero3", ["--nproc", 4, "--set", "prefetch=0"], ["prefetch=2"]),
         ("zero2", "zero3", ["--nproc", 16], []),
         ("1f1b", "interleaved", ["--nproc", 2, "--set", "layers=4"], []),
         ("3d", "3d", ["--nproc", 16, "--set", "layers=4"], ["tp=1", "schedule=zb_h1"]),
         ("ring_attention", "ring_attention", ["--nproc", 4], ["cp=4"]),
         ("moe", "moe", ["--nproc", 4], ["ep=4"]),
         ("one_sided", "1f1b", ["--nproc", 2], [])]


class Diff(unittest.TestCase):
    def cluster(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.addCleanup(file.close)
        file.write(text)
        file.flush()
        return file.name

    def predicted(self, first, second, both, to, cluster):
        words = [f"plans/{first}.lua", f"plans/{second}.lua", *both, *SMALL, "--cluster", cluster]
        for one in to:
            words += ["--to", one]
        return json.loads(prun("diff", *words, "--json"))["predicted"]

    def check_sums(self, found):
        step = max(found["first"]["step_s"], found["second"]["step_s"])
        causes = sum(cause["difference_s"] for cause in found["causes"])
        self.assertAlmostEqual(causes, found["difference_s"], delta=1e-6 * step)
        self.assertAlmostEqual(found["second"]["step_s"] - found["first"]["step_s"], found["difference_s"], delta=1e-12)
        sizes = [abs(cause["difference_s"]) for cause in found["causes"]]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        for side in ("first", "second"):
            parts = [seconds for name, seconds in found[side].items() if name.endswith("_s") and name != "step_s"]
            self.assertEqual(len(parts), 5)
            self.assertAlmostEqual(sum(parts), found[side]["step_s"], delta=1e-9 * step)
            of_causes = sum(cause[f"{side}_s"] for cause in found["causes"])
            self.assertLessEqual(of_causes, found[side]["step_s"] * (1 + 1e-9))

    def test_causes_add_up_to_the_difference(self):
        slow = self.cluster(f"include: {ROOT / A100}\ndevice: {{ shared_cores: true, wake: 20 us }}\n"
                            "nodes:\n  - { slow: { 0: 0.5 }, network_speed: 0.5 }\n  - { count: 7 }\n")
        wide = self.cluster(f"include: {ROOT / LAPTOPS}\nnodes: 16\n")
        for first, second, both, to in PAIRS:
            for cluster in (A100, slow, wide):
                with self.subTest(first=first, second=second, cluster=cluster):
                    self.check_sums(self.predicted(first, second, both, to, cluster))

    def test_steps_are_those_of_the_simulation(self):
        for first, second, both, to in PAIRS:
            with self.subTest(first=first, second=second):
                found = self.predicted(first, second, both, to, A100)
                alone = sim(f"plans/{first}.lua", *both, *SMALL, "--cluster", A100)
                side = found["first"]
                self.assertEqual(side["step_s"], alone["step_s"])
                self.assertAlmostEqual(side["exposed_communication_s"], alone["exposed_comm_s"], delta=1e-9 * side["step_s"])
                self.assertAlmostEqual(side["bubble_s"], alone["bubble"] * side["step_s"], delta=1e-9 * side["step_s"])
                self.assertTrue(side["fits"])

    def test_the_cause_is_what_was_changed(self):
        found = self.predicted("zero3", "zero3", ["--nproc", 4, "--set", "prefetch=0"], ["prefetch=2"], A100)
        self.assertLess(found["difference_s"], 0)
        self.assertEqual(found["causes"][0]["what"], "exposed all_gather over dp")
        fewer = self.predicted("single", "single", [], ["heads=1"], "plans/clusters/v100.yaml")
        self.assertRegex(fewer["causes"][0]["what"], r"^attention\w*, lua/prun/models/gpt.lua:\d+$")
        bubble = self.predicted("1f1b", "1f1b", ["--nproc", 2], ["micro=2"], A100)
        self.assertGreater(bubble["second"]["bubble_s"], bubble["first"]["bubble_s"])
        self.assertIn("waiting for recv over pp", [cause["what"] for cause in bubble["causes"]])

    def test_a_plan_and_itself(self):
        words = ["diff", "plans/zero3.lua", "plans/zero3.lua", "--nproc", 2, *SMALL, "--cluster", A100]
        self.assertEqual(json.loads(prun(*words, "--json"))["predicted"]["causes"], [])
        self.assertIn("no op takes longer in one of them", prun(*words))

    def test_text_has_both_timelines_on_one_axis(self):
        text = prun("diff", "plans/1f1b.lua", "--nproc", 2, *SMALL, "--cluster", LAPTOPS, "--to", "micro=2")
        self.assertRegex(text, r"a step on two laptops on Wi-Fi +[\d.]+ m?s +[\d.]+ m?s +-[\d.]+ m?s")
        self.assertRegex(text, r"why the second is [\d.]+ m?s shorter\n  \w")
        self.assertRegex(text, r"first plans/1f1b.lua.*: [\d.]+ m?s a step")
        rows = [line for line in text.splitlines() if re.match(r"rank [01]  compute ", line)]
        self.assertEqual(len(rows), 4)
        last = [len(row.rstrip(".")) for row in rows]
        self.assertGreater(min(last[:2]), max(last[2:]) + 4)  # the shorter step ends earlier on the shared time axis

    def test_without_a_cluster(self):
        words = ["diff", "plans/zero3.lua", "--nproc", 2, *SMALL, "--to", "prefetch=0"]
        self.assertIsNone(json.loads(prun(*words, "--json"))["predicted"])
        self.assertIn("no predicted time: --cluster FILE", prun(*words))

    def test_an_error_comes_before_the_remark_about_the_cluster(self):
        with tempfile.TemporaryDirectory() as config:
            place = pathlib.Path(config, "prun", os.uname().nodename + ".yaml")
            place.parent.mkdir()
            place.write_text(f"include: {ROOT / A100}\n")
            one = ["diff", "plans/zero3.lua"]
            for words in (["diff"], one, [*one, "--to", "prefetch=1", "--out", "a.svg"], ["sim"], ["tune"]):
                done = subprocess.run([PRUN, *words], cwd=ROOT, capture_output=True, text=True, timeout=60,
                                      env=os.environ | {"XDG_CONFIG_HOME": config})
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)

    def test_page(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "both.html"
            prun("diff", "plans/zero3.lua", "--nproc", 2, *SMALL, "--cluster", A100, "--to", "prefetch=0", "--out", page)
            data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
        data = json.loads(data[1])
        self.assertEqual([one["name"] for one in data["timelines"]], ["first", "second"])
        self.assertTrue(all(one["memory"] and one["unit_ns"] == 0 for one in data["timelines"]))
        self.assertIn("exposed all_gather over dp", data["notes"][0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
