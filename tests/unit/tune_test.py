"""prun tune: the best configuration of a small space equals that of an exhaustive sweep, and skipped candidates are
counted.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
A100 = "plans/clusters/dgx-a100.yaml"


def prun(*words, code=0):
    done = subprocess.run([PRUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout


def tune(plan, ranks, *words, cluster=A100, code=0):
    text = prun("tune", f"plans/{plan}.lua", "--cluster", cluster, "--nproc", ranks, "--json", *words, code=code)
    assert text.count("\n") == 1, text
    return json.loads(text)


def settings(**arguments):
    return [word for name, value in arguments.items() for word in ("--set", f"{name}={value}")]


def search(**arguments):
    return [word for name, value in arguments.items() for word in ("--search", f"{name}={value}")]


def sweep(plan, ranks, *words, cluster=A100):
    text = prun("sim", f"plans/{plan}.lua", "--cluster", cluster, "--nproc", ranks, "--json", *words)
    return json.loads(text)["sweep"]


class Tune(unittest.TestCase):
    def test_it_says_where_its_time_goes(self):
        words = ["tune", "plans/3d.lua", "--cluster", A100, "--nproc", "4", "--search", "schedule=1f1b",
                 "--search", "micro=2"]
        done = subprocess.run([PRUN, *words, "--time-passes"], cwd=ROOT, capture_output=True, text=True, timeout=120)
        for part in ("recording, script", "estimates, script", "simulations, compile", "proofs", "all"):
            self.assertRegex(done.stderr, rf"(?m)^{part} +[\d.]+ [mun]?s")

    def test_the_best_is_that_of_a_sweep(self):
        tuned = tune("3d", 8, "--set", "layers=8", "--search", "schedule=1f1b", "--search", "micro=2,8")
        swept = sweep("3d", 8, "--set", "layers=8", "--set", "schedule=1f1b", "--sweep", "pp=1,2,4,8",
                      "--sweep", "tp=1,2,4,8", "--sweep", "micro=2,8")
        self.assertEqual(tuned["combinations"], 32)
        best = {name: value for name, value in tuned["best"][0]["settings"].items() if name != "schedule"}
        self.assertEqual(best, swept[0]["settings"])
        self.assertEqual(tuned["best"][0]["step_s"], swept[0]["step_s"])
        # Settings that record the same plan count once.
        self.assertEqual([each["step_s"] for each in tuned["best"]], [each["step_s"] for each in swept][:20])

    def test_long_plans_are_ranked_as_their_simulations(self):
        words = ["--set", "layers=32", "--set", "width=2048", "--set", "heads=16", "--set", "context=1024",
                 "--set", "batch=256"]
        tuned = tune("gpt", 32, *words, "--search", "chunks=1", "--search", "bucket=25 MiB", "--search", "zero=1",
                     "--search", "sequence=true", "--search", "schedule=1f1b", "--search", "micro_size=1",
                     "--search", "recompute=none", "--search", "pp=1,2,4,8", "--search", "tp=1,2,4")
        self.assertGreater(len(tuned["best"]), 8)
        for each in tuned["best"]:
            with self.subTest(each["settings"]):
                self.assertLess(abs(each["estimate_s"] / each["step_s"] - 1), 0.05)
                self.assertLess(abs(each["estimate_bytes"] / each["peak_bytes"] - 1), 0.15)
                self.assertAlmostEqual(sum(each["parts_s"].values()) / each["step_s"], 1, places=6)
        steps = [each["step_s"] for each in tuned["best"]]
        self.assertEqual(steps, sorted(steps))

    def test_estimates_hold_for_any_number_of_microbatches(self):
        for pp, chunks, batch in ((8, 2, 61), (4, 3, 31)):
            words = settings(layers=48, width=1024, heads=8, context=512, batch=batch)
            words += search(pp=pp, chunks=chunks, tp=1, schedule="1f1b", sequence="false", zero=0, micro_size=1,
                            recompute="none", bucket="25 MiB")
            best = tune("gpt", pp, *words)["best"][0]
            self.assertLess(abs(best["estimate_s"] / best["step_s"] - 1), 0.05)
            self.assertLess(abs(best["estimate_bytes"] / best["peak_bytes"] - 1), 0.05)

    def test_what_does_not_fit_is_counted(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as small:
            small.write(f"include: {ROOT / A100}\ndevice: {{ memory: 60 MB }}\n")
            small.flush()
            words = ["--search", "schedule=1f1b", "--search", "micro=4"]
            tuned = tune("3d", 8, *words, cluster=small.name)
            self.assertGreater(tuned["misfits"], 0)
            self.assertTrue(all(each["peak_bytes"] <= 60e6 for each in tuned["best"]))
            fits = sweep("3d", 8, "--set", "schedule=1f1b", "--set", "micro=4", "--sweep", "pp=1,2,4,8",
                         "--sweep", "tp=1,2,4,8", cluster=small.name)
            self.assertEqual([each["step_s"] for each in tuned["best"]], [each["step_s"] for each in fits])
            text = prun("tune", "plans/3d.lua", "--cluster", small.name, "--nproc", 8, *words)
            self.assertIn("do not fit in memory; the fastest, pp=", text)
            self.assertIn("run it: prun plans/3d.lua --nproc 8 --set micro=4", text)

    def test_no_plans_are_counted_by_reason(self):
        tuned = tune("3d", 8, "--search", "schedule=1f1b", "--search", "micro=1")
        reasons = {each["why"].split(": ", 1)[1]: each["count"] for each in tuned["left_out"]}
        self.assertEqual(sum(reasons.values()) + len(tuned["best"]), 16)
        self.assertTrue(any("need a multiple of" in why and count == 6 for why, count in reasons.items()), reasons)

    def test_many_combinations_are_narrowed(self):
        words = ["--set", "layers=8", "--set", "batch=64"]
        all_of_them = tune("gpt", 8, *words, "--candidates", 100000, "--search", "micro_size=1,2",
                           "--search", "recompute=none", "--search", "bucket=25 MiB", "--search", "zero=0,1")
        some = tune("gpt", 8, *words, "--candidates", 60, "--search", "micro_size=1,2",
                    "--search", "recompute=none", "--search", "bucket=25 MiB", "--search", "zero=0,1")
        self.assertEqual((some["combinations"], some["estimated"]), (all_of_them["combinations"], 60))
        self.assertEqual(all_of_them["estimated"], all_of_them["combinations"])
        self.assertLess(some["best"][0]["step_s"], 1.1 * all_of_them["best"][0]["step_s"])

    def test_what_trains_something_else_is_named(self):
        drift = "weights drift between averages"
        words = ["tune", "tests/errors/files/strategies.lua", "--nproc", 2, "--cluster", A100,
                 "--set", "case=gradients_averaged", "--search", f"differs={drift},staleness"]
        tuned = json.loads(prun(*words, "--json"))
        self.assertEqual([each["settings"] for each in tuned["refuted"]], [{"differs": drift}])
        self.assertIn("nothing averages them: see unit:every", tuned["refuted"][0]["why"])
        self.assertEqual([each["settings"] for each in tuned["best"]], [{"differs": "staleness"}])
        self.assertIn("not proven: ", tuned["best"][0]["proof"])
        self.assertIn(f"differs={drift}: tests/errors/files/strategies.lua:187: ", prun(*words))

    def test_the_best_are_proved(self):
        tuned = tune("3d", 8, "--set", "layers=8", "--set", "schedule=1f1b", "--set", "micro=2")
        self.assertTrue(all(each["proof"].startswith(("proven: equals one rank", "not proven: "))
                            for each in tuned["best"]))
        self.assertEqual(tuned["refuted"], [])

    def test_every_shipped_plan_with_something_to_try(self):
        for plan in json.loads(prun("plans", "--json"))["plans"]:
            if any(argument["tune"] for argument in plan["arguments"]):
                with self.subTest(plan["path"]):
                    ranks = 1 if plan["name"] == "single" else 2
                    words = ["--cluster", "plans/clusters/laptops.yaml", "--nproc", ranks, "--candidates", 8, "--json"]
                    tuned = json.loads(prun("tune", plan["path"], *words))
                    self.assertTrue(tuned["best"])
                    self.assertTrue(tuned["command"].startswith(f"prun {plan['path']} --nproc "))


if __name__ == "__main__":
    PRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
