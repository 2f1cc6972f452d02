"""prun calibrate: prun sim can read its file, and all its values are physically possible. tools/bench/calibrated.py
measures its accuracy, which depends on the load of the machine.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def prun(*words, **environment):
    done = subprocess.run([PRUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=400,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr}")
    return done.stdout


class Calibrate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = pathlib.Path(cls.folder.name, "new/here.yaml")
        answer = prun("calibrate", "--nproc", 2, "--seconds", 20, "--json", "--output", cls.file)
        assert answer.count("\n") == 1, answer
        cls.json = json.loads(answer)
        cls.text = cls.file.read_text()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_json_says_where_and_what(self):
        self.assertEqual(self.json["file"], str(self.file))
        self.assertEqual(self.json["ranks"], 2)
        for name in ("seconds", "memory_bandwidth", "f32_flops", "bf16_flops", "bus_bandwidth"):
            self.assertGreater(self.json[name], 0, name)

    def test_the_file_says_by_what_it_was_made(self):
        first = self.text.splitlines()[0]
        self.assertRegex(first, r"^# Measured by `prun calibrate --nproc 2 .*` on .*, \d{4}-\d\d-\d\d \d\d:\d\d, with all of 2 ranks")

    def test_every_figure_is_above_zero(self):
        figures = re.findall(r"[:{] ?(-?[\d.e+-]+|nan|inf) (us|[MG]B/s|[MG]FLOP/s|MiB)\b", self.text)
        self.assertGreater(len(figures), 100)
        for figure, unit in figures:
            with self.subTest(unit):
                self.assertGreater(float(figure), 0) if unit != "us" else self.assertGreaterEqual(float(figure), 0)

    def test_what_a_step_needs_is_measured(self):
        for op in ("linear", "linear_dx", "linear_dw", "attention", "layernorm", "gelu", "add", "adamw"):
            self.assertIn(f"\n    {op}:\n", self.text)
        for word in ("\n  shm:", "\n  socket:", "\n  socket-tcp:", "      all_reduce: ", "shared_cores: true"):
            self.assertIn(word, self.text)

    def test_sim_reads_it_and_is_of_the_right_size(self):
        words = ["--nproc", 2, "--set", "layers=1", "--set", "batch=16"]
        found = json.loads(prun("sim", "plans/ddp.lua", "--cluster", self.file, "--json", *words))
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as rows:
            prun("plans/ddp.lua", *words, "--set", "steps=6", "--metrics", rows.name, "--overwrite")
            steps = sorted(json.loads(line)["time_s"] for line in rows.read().splitlines())
        self.assertGreater(found["step_s"], steps[0] / 20)
        self.assertLess(found["step_s"], steps[-1] * 20)

    def test_sim_takes_it_where_no_cluster_is_named(self):
        with tempfile.TemporaryDirectory() as config:
            place = pathlib.Path(config, "prun", os.uname().nodename + ".yaml")
            place.parent.mkdir()
            place.write_text(self.text)
            named = prun("sim", "plans/ddp.lua", "--nproc", 2, "--json", "--cluster", self.file)
            self.assertEqual(prun("sim", "plans/ddp.lua", "--nproc", 2, "--json", XDG_CONFIG_HOME=config), named)

    def test_a_file_with_fewer_devices_than_ranks_is_not_taken(self):
        with tempfile.TemporaryDirectory() as config:
            place = pathlib.Path(config, "prun", os.uname().nodename + ".yaml")
            place.parent.mkdir()
            place.write_text(self.text)

            def run(*words):
                done = subprocess.run([PRUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=400,
                                      env={**os.environ, "XDG_CONFIG_HOME": config})
                return done.returncode, done.stderr

            few = f"{place}, by prun calibrate, has 2 devices, too few for 8 ranks"
            for command in ("sim", "tune"):
                self.assertEqual(run(command, "plans/gpt.lua", "--nproc", 8), (
                    2, f"prun: on which cluster? For example: --cluster plans/clusters/dgx-a100.yaml ({few})\n"))
            self.assertEqual(run("diff", "plans/zero2.lua", "plans/zero3.lua", "--nproc", 8),
                             (0, f"prun: without --cluster: {few}\n"))
            self.assertEqual(run("sim", "plans/ddp.lua", "--nproc", 2),
                             (0, f"prun: no --cluster: {place} is used, by prun calibrate\n"))

    def test_algorithms_are_chosen_by_it_and_that_is_said(self):
        with tempfile.TemporaryDirectory() as config:
            place = pathlib.Path(config, "prun", os.uname().nodename + ".yaml")
            place.parent.mkdir()
            slow, fast = "{ step: 9 ms, bandwidth: 1 MB/s }", "{ step: 1 us, bandwidth: 90 GB/s }"
            others = ", ".join(f"{name}: {slow}" for name in ("gather", "direct", "doubling", "halving"))
            place.write_text(f"include: {ROOT}/plans/clusters/dgx-a100.yaml\ntransports:\n  socket:\n    bandwidth: 1 GB/s\n"
                             f"    algorithms: {{ all_reduce: {{ ring: {fast}, {others} }} }}\n")
            words = ["plans/ddp.lua", "--nproc", 2, "--set", "layers=1", "--set", "batch=4"]
            run = [*words, "--set", "steps=1", "--transport", "socket"]
            for command in ("check", "dump"):
                self.assertIn("by calibration: all_reduce ring over socket", prun(command, *words, XDG_CONFIG_HOME=config))
                self.assertNotIn("by calibration", prun(command, *words, XDG_CONFIG_HOME="/none"))
            self.assertEqual(json.loads(prun("check", *words, "--json", XDG_CONFIG_HOME=config))["algorithms"],
                             "all_reduce ring over socket")
            self.assertIn("over socket, algorithms by calibration", prun(*run, XDG_CONFIG_HOME=config))
            self.assertNotIn("calibration", prun(*run, XDG_CONFIG_HOME="/none"))
            bench = ["bench", "all_reduce", "--transport", "socket", "--bytes", "4", "--budget", "0.01", "--json"]
            rows = [json.loads(line) for line in prun(*bench, XDG_CONFIG_HOME=config).splitlines()]
            self.assertEqual({row["algorithm"] for row in rows}, {"ring"})
            place.write_text(place.read_text().replace("ring:", "rink:"))
            done = subprocess.run([PRUN, *map(str, run)], cwd=ROOT, capture_output=True, text=True,
                                  env={**os.environ, "XDG_CONFIG_HOME": config})
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"HOST.yaml:5:\d+: the algorithms of all_reduce has no field 'rink' \(did you mean 'ring'\?\)"
                             .replace("HOST", os.uname().nodename))


if __name__ == "__main__":
    PRUN = sys.argv.pop(1)
    unittest.main()
