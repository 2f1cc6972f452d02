#!/usr/bin/env python3
"""A checkpoint folder has one owner and one history: which checkpoint is newest, also after a rollback and after
damage, and which runs may write there. Usage: history_test.py PRUN
"""
import hashlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
import prun_faults_test as faults  # noqa: E402

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent
PLAN = HERE / "history.lua"


class History(unittest.TestCase):
    def setUp(self):
        self.here = pathlib.Path(tempfile.mkdtemp(prefix="prun-history-"))
        self.addCleanup(shutil.rmtree, self.here)

    def prun(self, *words, code=0):
        done = subprocess.run([PRUN, *map(str, words)], cwd=self.here, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def train(self, folder, steps, *options, code=0, plan=PLAN, every=2, **settings):
        sets = [word for name, value in {"steps": steps, **settings}.items() for word in ("--set", f"{name}={value}")]
        metrics = self.here / "metrics"
        metrics.unlink(missing_ok=True)
        where = [] if folder is None else ["--checkpoint", folder, "--checkpoint-every", every]
        done = self.prun(plan, *sets, *where, "--metrics", metrics, *options, code=code)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        done.losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
        return done

    def ls(self, folder):
        return {pathlib.Path(row["checkpoint"]).name: row for row in map(json.loads, self.prun("ckpt", "ls", folder, "--json").stdout.splitlines())}

    def newest(self, folder):
        return [name for name, row in self.ls(folder).items() if row["newest"]]

    def names(self, folder):
        return sorted(path.name for path in (self.here / folder).glob("step_*"))

    def index(self, name):
        return json.loads((self.here / name / "index.json").read_text())

    def rewrite(self, name, **changes):
        """Sets keys of an index; None removes a key."""
        index = {**self.index(name), **changes}
        (self.here / name / "index.json").write_text(json.dumps({key: value for key, value in index.items() if value is not None}))

    def went_back(self):
        """Trains ten steps, then a branch from step 4 with one checkpoint, at step 6."""
        self.train("D", 10)
        self.train("D", 6, "--resume", "D/step_00000004", clip=0.1)

    def damage(self, name):
        file = next((self.here / name).glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:-4] + b"\1\2\3\4")


class Branches(History):
    def test_the_newest_is_the_head_of_the_branch_that_was_committed_last(self):
        self.went_back()
        done = self.train("D", 12, "--resume", "auto", clip=0.1)
        self.assertEqual(sorted(done.losses), [7, 8, 9, 10, 11, 12])
        self.assertAlmostEqual(done.losses[12], 4.910437, places=5)
        first = [f"step_{step:08}" for step in (2, 4, 6, 8, 10)]
        second = [f"step_{step:08}-2" for step in (6, 8, 10, 12)]
        self.assertEqual(self.names("D"), sorted(first + second))
        self.assertEqual(self.newest("D"), ["step_00000012-2"])
        listed = self.ls("D")
        self.assertEqual([listed[name]["branch"] for name in first + second], [1] * 5 + [2] * 4)
        parents = [listed[name]["parent"] and listed[name]["parent"]["checkpoint"] for name in first + second]
        self.assertEqual(parents, [None, *first[:-1], first[1], *second[:-1]])
        for name in first + second:
            if parent := listed[name]["parent"]:
                text = (self.here / "D" / parent["checkpoint"] / "index.json").read_bytes()
                self.assertEqual((parent["id"], parent["run"]), (hashlib.sha256(text).hexdigest(), listed[parent["checkpoint"]]["run"]))
        runs = {json.loads(path.read_text())["run"]: json.loads(path.read_text()) for path in self.here.glob("runs/*/run.json")}
        self.assertEqual(set(runs), {row["run"] for row in listed.values()})
        begun = runs[listed[second[0]]["run"]]
        self.assertEqual((begun["branch"], begun["parent"]), (2, listed[second[0]]["parent"]))

    def test_newest_means_the_same_everywhere(self):
        self.went_back()
        newest = "step_00000006-2"
        for words in (["show"], ["verify"], ["reshard", "--ranks", 1, "--out", "R"], ["export", "--format", "hf", "--out", "H"]):
            shown = json.loads(self.prun("ckpt", words[0], "D", *words[1:], "--json").stdout)
            self.assertEqual(pathlib.Path(shown.get("checkpoint") or shown["from"]).name, newest, words)
        self.assertEqual(self.index("R/step_00000006")["parent"]["checkpoint"], f"../D/{newest}")
        self.assertIn(f"D/{newest} has all 6 steps of this plan", self.train(None, 6, "--resume", "D", clip=0.1).stderr)
        self.assertEqual(self.prun("ckpt", "diff", "D", f"D/{newest}", "--json").stdout, '{"differ":{}}\n')
        text = [self.prun("generate", PLAN, "--checkpoint", at, "--prompt", "a", "--tokens", 4, "--json").stdout for at in ("D", f"D/{newest}")]
        self.assertEqual(*[json.loads(each)["text"] for each in text])

    def test_a_damaged_head_falls_back_along_its_parents(self):
        self.went_back()
        self.train("D", 8, "--resume", "auto", clip=0.1)
        self.damage("D/step_00000008-2")
        self.damage("D/step_00000006-2")
        done = self.train("D", 6, "--resume", "auto", clip=0.1)
        self.assertEqual(done.stderr.count("taking the checkpoint before it"), 2)
        self.assertEqual(sorted(done.losses), [5, 6])
        self.assertEqual(self.ls("D")["step_00000006-3"]["parent"]["checkpoint"], "step_00000004")
        for name in ("step_00000006-3", "step_00000004", "step_00000002"):
            self.damage(f"D/{name}")
        said = self.train("D", 12, "--resume", "auto", code=16).stderr
        self.assertIn("step_00000002", said)
        self.assertIn("its branch has no checkpoint before it: name one of another branch, or another folder", said)

    def test_without_an_index_the_name_says_the_branch(self):
        self.went_back()
        self.train("D", 8, "--resume", "auto", clip=0.1)
        (self.here / "D/step_00000008-2/index.json").write_text("{")
        self.assertEqual(sorted(self.train("D", 8, "--resume", "auto", clip=0.1).losses), [7, 8])
        self.assertIn("step_00000008-2  damaged: D/step_00000008-2/index.json: ", self.prun("ckpt", "ls", "D").stdout)

    def test_latest_is_gone(self):
        self.train("D", 6)
        (self.here / "D/LATEST").unlink()
        done = self.train("D", 8, "--resume", "auto")
        self.assertIn("prun: D has no LATEST: the newest is step_00000006, the last one of its only branch\n", done.stderr)
        self.assertEqual(sorted(done.losses), [7, 8])
        shutil.rmtree(self.here / "D/step_00000008")
        done = self.train("D", 8, "--resume", "auto")
        self.assertIn("prun: D/LATEST names step_00000008, which is gone: the newest is step_00000006, the last one before it in its "
                      "branch\n", done.stderr)
        self.train("D", 6, "--resume", "D/step_00000004")
        for latest, why in (("step_00000009-2", "names step_00000009-3, which is gone"), (None, "is missing")):
            (self.here / "D/LATEST").write_text("step_00000009-3\n") if latest else (self.here / "D/LATEST").unlink()
            for words in (["ckpt", "show", "D"], ["ckpt", "export", "D", "--format", "hf", "--out", "H"]):
                self.assertIn(f"prun: D/LATEST {why}, so which checkpoint is the newest is not known: name one, as in D/step_00000006-2 (the "
                              "branches end in step_00000008, step_00000006-2)\n", self.prun(*words, code=16).stderr)
            self.assertEqual(self.newest("D"), [])

    def test_a_parent_that_is_gone_or_replaced(self):
        self.train("D", 6)
        shutil.rmtree(self.here / "D/step_00000004")
        self.assertIn("after step_00000004 (gone)", self.prun("ckpt", "ls", "D").stdout)
        shutil.copytree(self.here / "D/step_00000002", self.here / "D/step_00000004")
        self.assertIn("after step_00000004 (gone)", self.prun("ckpt", "ls", "D").stdout)
        self.assertIn("step_00000004 (step 4, run ", self.prun("ckpt", "show", "D").stdout)
        self.assertEqual(sorted(self.train("D", 8, "--resume", "auto").losses), [7, 8])

    def test_a_run_killed_before_it_named_its_commit(self):
        self.train("D", 6)
        (self.here / "D/LATEST").write_text("step_00000004\n")
        self.assertEqual(self.newest("D"), ["step_00000006"])

    def test_nothing_left_to_train_changes_nothing(self):
        self.train("D", 4)
        before = self.index("D/step_00000004")
        self.train("D", 4, "--resume", "auto")
        self.assertEqual((self.names("D"), self.index("D/step_00000004")), (["step_00000002", "step_00000004"], before))

    def test_clocks_do_not_count(self):
        self.went_back()
        for number, name in enumerate(self.names("D")):
            subprocess.run(["touch", "-d", f"20{10 + number}-01-01", self.here / "D" / name, self.here / "D" / name / "index.json"], check=True)
        self.assertEqual(self.newest("D"), ["step_00000006-2"])

    def test_checkpoints_of_before(self):
        self.train("D", 6)
        for name in self.names("D"):
            self.rewrite(f"D/{name}", run=None, branch=None, parent=None)
        (self.here / "D/LATEST").write_text("step_00000004\n")
        self.assertEqual(self.newest("D"), ["step_00000004"])
        self.assertIn("  run and branch not known (an earlier prun): ", self.prun("ckpt", "ls", "D").stdout)
        self.assertIn("run            not known: an earlier prun wrote it, without its run, branch and parent\n", self.prun("ckpt", "show", "D").stdout)
        self.assertIsNone(self.ls("D")["step_00000006"]["run"])
        done = self.train("D", 8, "--resume", "auto", "--checkpoint-keep", 1)
        self.assertEqual(sorted(done.losses), [5, 6, 7, 8])
        self.assertEqual(self.names("D"), ["step_00000002", "step_00000004", "step_00000006", "step_00000008-2"])


class Owner(History):
    def test_a_fresh_run_is_refused(self):
        self.train("D", 4)
        run = self.ls("D")["step_00000004"]["run"]
        said = self.train("D", 3, "--checkpoint-keep", 1, code=2, seed=5).stderr
        self.assertEqual(said, f"prun: D belongs to run {run} ({PLAN}, 2 checkpoints, the newest of step 4), and this run, {PLAN} --set seed=5 "
                         "--set steps=3, would begin anew: --resume auto goes on with that run, --overwrite removes its checkpoints, or "
                         "name another folder\n")
        self.assertIn("D belongs to run", self.train("D", 3, code=2, width=32).stderr)
        self.assertEqual(self.names("D"), ["step_00000002", "step_00000004"])
        self.assertIn("does not fit this plan", self.train("D", 6, "--resume", "auto", code=16, width=32).stderr)
        self.train("D", 3, "--overwrite", seed=5)
        self.assertEqual(self.names("D"), ["step_00000002", "step_00000003"])
        self.assertNotEqual(self.ls("D")["step_00000003"]["run"], run)

    def test_a_plan_that_is_wrong_overwrites_nothing(self):
        self.train("D", 4)
        before = self.names("D")
        self.train("D", 4, "--overwrite", code=3, heads=3)
        self.assertEqual(self.names("D"), before)

    def test_what_is_copied_in_part(self):
        self.train("D", 4, every=4)
        (self.here / "D/step_00000004/index.json").unlink()
        self.assertIn("D belongs to another run (step_00000004)", self.train("D", 4, code=2).stderr)
        said = "D/step_00000004 has no index.json: the folder was copied in part, or files were removed; copy it whole, or name another folder"
        self.assertIn(said, self.train("D", 6, "--resume", "auto", code=16).stderr)
        shutil.rmtree(self.here / "D/step_00000004")
        self.assertIn("D/LATEST names step_00000004, which is gone, and no other checkpoint is left",
                      self.train("D", 6, "--resume", "auto", code=16).stderr)
        self.train("D", 4, code=2)
        self.train("E", 2, "--resume", "auto")  # an empty folder starts a new run
        self.assertIn("E/step_00000002 is a checkpoint, and --checkpoint names a folder of checkpoints", self.train("E/step_00000002", 2, code=2).stderr)

    def test_from_elsewhere_into_a_used_folder(self):
        self.train("D", 4)
        self.train("E", 2, lr=0.001)
        said = self.train("D", 6, "--resume", "E", code=2).stderr
        self.assertIn("continues E/step_00000002: name another folder, --overwrite removes its checkpoints", said)
        self.train("F", 6, "--resume", "D")
        self.assertEqual(self.index("F/step_00000006")["parent"]["checkpoint"], "../D/step_00000004")
        self.train("D", 8, "--resume", "F")  # F continues D's run
        self.assertEqual(self.newest("D"), ["step_00000008-2"])
        self.assertEqual(self.index("D/step_00000008-2")["parent"]["checkpoint"], "../F/step_00000006")
        self.damage("D/step_00000008-2")
        self.assertEqual(sorted(self.train("D", 8, "--resume", "auto").losses), [7, 8])
        self.train("D", 3, "--resume", "E", "--overwrite")
        self.assertEqual(self.names("D"), ["step_00000003"])

    def test_a_copy_of_a_checkpoint_is_that_checkpoint(self):
        self.train("D", 4)
        shutil.copytree(self.here / "D/step_00000004", self.here / "copy")
        self.train("D", 6, "--resume", "copy")
        self.assertEqual(self.index("D/step_00000006")["parent"]["checkpoint"], "step_00000004")

    def test_weights_that_the_plan_begins_with_are_not_overwritten(self):
        self.train("D", 4)
        said = self.train("D", 4, "--overwrite", code=2, init="D").stderr
        self.assertRegex(said, r"history.lua:8: the plan begins with the weights in .*/D, which --overwrite would remove from D: name another folder\n")
        self.assertEqual(self.names("D"), ["step_00000002", "step_00000004"])

    def test_two_that_start_at_once(self):
        words = [PRUN, PLAN, "--set", "steps=200", "--checkpoint", "D", "--checkpoint-every", "50"]
        both = [subprocess.Popen(words, cwd=self.here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = [each.communicate(timeout=60)[1] for each in both]
        self.assertEqual(sorted(each.returncode for each in both), [0, 2], said)
        self.assertEqual(len({row["run"] for row in self.ls("D").values()}), 1)


class Keep(History):
    def test_counts_its_own_branch(self):
        self.went_back()
        self.train("D", 12, "--resume", "auto", "--checkpoint-keep", 1, clip=0.1)
        first = [f"step_{step:08}" for step in (2, 4, 6, 8, 10)]
        self.assertEqual(self.names("D"), sorted([*first, "step_00000006-2", "step_00000012-2"]), "6-2 is what it resumed from")
        self.train("D", 14, "--resume", "auto", "--checkpoint-keep", 1, clip=0.1)
        self.assertEqual(self.names("D"), sorted([*first, "step_00000012-2", "step_00000014-2"]))


class CtrlC(History):
    def start(self, *options, steps=1000000):
        words = [PRUN, PLAN, "--set", f"steps={steps}", "--metrics", "m", *map(str, options)]
        run = subprocess.Popen(words, cwd=self.here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.stderr.close)
        faults.wait_for(lambda: self.trained() or run.poll() is not None, "step 1")
        self.assertIsNone(run.poll())
        return run

    def trained(self):
        return (self.here / "m").exists() and (self.here / "m").stat().st_size > 0

    def test_the_first_keeps_what_was_trained(self):
        run = self.start("--checkpoint", "D")
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=60)[1]
        self.assertEqual(run.returncode, 75, said)
        self.assertIn("prun: Ctrl-C: a checkpoint, then the end, within 25 s; a second one ends the job at once\n", said)
        [newest] = self.newest("D")
        self.assertIn(f"prun: stopped by Ctrl-C; D/{newest} has what was trained, --resume auto goes on\n", said)

    def test_without_a_folder_it_ends(self):
        run = self.start()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        self.assertEqual(run.returncode, 130)

    def test_the_second_ends_at_once(self):
        run = self.start("--checkpoint", "D", "--chaos", "stop:rank=0@step=3")
        faults.wait_for(lambda: [faults.state(pid) for pid in faults.ranks_of(run.pid).values()] == ["T"], "the stop of rank 0")
        run.send_signal(signal.SIGINT)
        self.assertIn("prun: Ctrl-C: a checkpoint, then the end", run.stderr.readline())
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=60)[1]
        self.assertEqual(run.returncode, 130, said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
