#!/usr/bin/env python3
"""The output of `prun draw` for plans, traces and runs (--json); arrows in traces lead from sender to receiver."""
import collections
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SMALL = ["--set", "layers=4", "--set", "width=32", "--set", "context=16", "--set", "batch=8", "--set", "steps=2"]
PRUN = ""


def prun(*words, code=0):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRUN_")} | {"NO_COLOR": "1"}
    done = subprocess.run([PRUN, *map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode != code:
        raise AssertionError(f"prun {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def summary(*words):
    return json.loads(prun("draw", *words, "--json"))


class Draw(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def trace(self, *words):
        path = self.folder / "trace.json"
        prun(*words, *SMALL, "--trace", path)
        return path

    def test_a_trace_beside_its_plan(self):
        path = self.trace("plans/zero3.lua", "--nproc", 2)
        drawn = summary(path, "plans/zero3.lua", "--nproc", 2, *SMALL)
        schedule, measured = drawn["timelines"]
        self.assertEqual((schedule["name"], measured["name"]), ("schedule", "measured"))
        self.assertEqual((schedule["lanes"], measured["lanes"]), (3, 6))
        self.assertEqual(measured["boxes"], 2 * 2 * schedule["boxes"])  # two ranks, two steps
        self.assertEqual(schedule["unit_ns"], 0)  # stretched to the measured time
        self.assertEqual(measured["steps"], 2)
        self.assertGreater(measured["peak_bytes"], 0)
        self.assertLessEqual(sum(measured["critical_ns"].values()), 2 * measured["step_ns"] + 2)
        one = summary(path, "--steps", 2)["timelines"][0]
        self.assertEqual(one["peak_bytes"], 0)
        self.assertEqual((one["steps"], one["boxes"] * 2), (1, measured["boxes"]))

    def test_memory_is_that_of_the_program(self):
        """The live bytes never exceed the arena, and with one stream's order they nearly fill it."""
        arena = json.loads(prun("check", "plans/zero3.lua", "--nproc", 2, "--json"))["classes"][0]["arena_bytes"]
        peak = summary("plans/zero3.lua", "--nproc", 2)["timelines"][0]["peak_bytes"]
        self.assertLessEqual(peak, arena)
        self.assertGreater(peak, 0.9 * arena)

    def test_schedules_are_those_of_their_papers(self):
        """p = 4, m = 8: bubbles of (p - 1)(F + B), half of that with two stages per rank, and less without weight
        gradients.
        """
        def idle(plan, *words):
            timeline = summary(f"plans/{plan}.lua", "--nproc", 4, "--set", "pp=4", "--set", "layers=8", *words)["timelines"][0]
            return timeline["step_ns"] / timeline["unit_ns"] * (1 - timeline["busy"])
        one, interleaved = idle("1f1b"), idle("interleaved")
        h1, v = idle("zero_bubble"), idle("zero_bubble", "--set", "schedule=zb_v")
        self.assertAlmostEqual(one, 9, delta=1.5)  # messages take time too
        self.assertAlmostEqual(interleaved, 4.5, delta=1.5)
        self.assertAlmostEqual(h1, 3, delta=1.5)
        self.assertLess(v, h1)

    def test_a_plan_on_a_cluster_is_drawn_as_it_is_simulated(self):
        words = ["plans/3d.lua", "--nproc", 8, "--set", "micro=2", "--cluster", "plans/clusters/dgx-a100.yaml"]
        [timeline] = summary(*words)["timelines"]
        simulated = json.loads(prun("sim", *words, "--json"))
        self.assertEqual((timeline["name"], timeline["unit_ns"]), ("predicted", 0))
        self.assertAlmostEqual(timeline["step_ns"] / 1e9, simulated["step_s"], 6)
        self.assertGreater(timeline["peak_bytes"], 0)
        self.assertLessEqual(timeline["peak_bytes"], max(simulated["peak_bytes"]))  # the arena also has gaps

    def test_many_ranks_are_drawn_by_their_classes(self):
        drawn = summary("plans/3d.lua", "--nproc", 64, "--set", "pp=4", "--set", "tp=4", "--set", "layers=4")
        self.assertLess(drawn["timelines"][0]["lanes"], 40)

    def test_messages_of_a_trace_lead_to_their_receiver(self):
        path = self.trace("plans/1f1b.lua", "--nproc", 4, "--set", "pp=4", "--set", "micro=4")
        events = json.loads(path.read_text())["traceEvents"]
        tracks = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X" and event["cat"] != "wait":
                tracks[event["pid"], event["tid"]].append(event)

        def under(flow):
            begun = [e for e in tracks[flow["pid"], flow["tid"]] if e["ts"] <= flow["ts"] + 1e-6]
            return max(begun, key=lambda e: e["ts"])
        starts = {event["id"]: event for event in events if event["ph"] == "s" and event["name"] == "collective"}
        messages = 0
        for event in events:
            if event["ph"] != "f" or event["id"] not in starts:
                continue
            ends = [under(starts[event["id"]]), under(event)]
            words = sorted(end["name"].split()[0] for end in ends)
            if "send" not in words and "recv" not in words:
                continue
            messages += 1
            self.assertEqual(words, ["recv", "send"])
            self.assertEqual(len({(end["args"]["microbatch"], end["args"]["phase"], end["args"]["step"]) for end in ends}), 1)
            self.assertEqual(abs(ends[0]["pid"] - ends[1]["pid"]), 1)
        self.assertGreater(messages, 0)

    def test_runs(self):
        runs = self.folder / "runs"
        prun("plans/single.lua", *SMALL, "--runs", runs, "--trace", self.folder / "trace.json")
        prun("plans/single.lua", *SMALL, "--set", "seed=1", "--runs", runs)
        both = summary(runs)
        self.assertEqual([curve["steps"] for curve in both["curves"]], [2, 2])
        self.assertEqual(both["timelines"], [])
        of_one = {len(summary(run)["timelines"]) for run in runs.iterdir()}
        self.assertEqual(of_one, {0, 1})  # the run with a trace has a timeline
        notes, = (found["notes"] for found in map(summary, runs.iterdir()) if not found["timelines"])
        self.assertIn("was run without --trace, and did not fail. Its schedule: prun draw plans/single.lua --nproc 1 --set ",
                      notes[0])
        words = notes[0].split("prun draw ")[1].split(";")[0]
        self.assertEqual(len(summary(*shlex.split(words))["timelines"]), 1)

    def test_a_run_that_failed(self):
        runs = self.folder / "runs"
        prun("plans/zero3.lua", "--nproc", 2, *SMALL[:-2], "--set", "steps=50", "--runs", runs, "--chaos", "kill:rank=1@step=3",
             code=10)
        run, = runs.iterdir()
        timeline, = summary(run)["timelines"]
        self.assertEqual(timeline["name"], "recorded")
        self.assertGreater(timeline["boxes"], 10)
        self.assertEqual(timeline["step_ns"], 0, "streams keep 64 ops, fewer than a step of this plan")
        self.assertGreater(timeline["busy"] + timeline["exposed"], 0.2, "ops of other streams before the window count as waiting")
        self.assertRegex(prun("draw", run), r"\Arecorded \S+: the last [\d.]+ \S+, compute \d+ % busy")

    def test_what_is_computed_again_is_a_kind_of_its_own(self):
        self.assertIn("recompute", summary("tests/golden/recompute.lua")["timelines"][0]["critical_ns"])
        self.assertNotIn("recompute", summary("plans/single.lua")["timelines"][0]["critical_ns"])

    def test_diff(self):
        """Prefetching more units takes memory, sends the same bytes, and makes gathers wait for fewer ops."""
        both = json.loads(prun("diff", "plans/zero3.lua", "--nproc", 2, "--set", "prefetch=0", "--to", "prefetch=2", "--json"))
        first, second = both["first"], both["second"]
        self.assertEqual(first["sent_bytes"], second["sent_bytes"])
        grown = second["roles"]["gathered"] - first["roles"]["gathered"]
        self.assertGreater(grown, 0)
        self.assertLess(second["step"], first["step"])
        order = {diff["stream"]: diff for diff in both["order"]}
        self.assertGreater(order["gather"]["other_waits"], 5)
        for stream, waits in (("compute", 2), ("reduce", 0)):  # the first two gathers are at the end of the previous step
            self.assertEqual([order[stream][k] for k in ("only_first", "only_second", "moved", "other_waits")], [0, 0, 0, waits])
        itself = json.loads(prun("diff", "plans/zero3.lua", "plans/zero3.lua", "--json"))
        self.assertEqual(itself["first"], itself["second"])

    def test_text(self):
        text = prun("draw", "plans/1f1b.lua", "--nproc", 2)
        rows = [line for line in text.splitlines() if line.startswith("rank ")]
        self.assertEqual(len(rows), 2)
        self.assertRegex(rows[1], r"rank 1 +compute +[.F]+[FB.]+")


if __name__ == "__main__":
    PRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
