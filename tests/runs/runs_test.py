#!/usr/bin/env python3
"""Output of a run by the real program: the rows of --metrics and their file, runs/<id>/, prun runs.
Usage: runs_test.py PRUN
"""
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
import prun_faults_test as faults  # noqa: E402

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent
SMALL = ["layers=2", "width=32", "heads=4", "context=16", "batch=8"]
SECRET = "a-secret-that-nobody-may-keep"


def rows(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = pathlib.Path(folder.name)

    def prun(self, *words, code=0, **environment):
        done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=100, cwd=self.here,
                              env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def words(self, *options, steps=4, ranks=2, settings=()):
        last = {setting.split("=")[0]: setting for setting in [*SMALL, *settings, f"steps={steps}"]}
        sets = [word for setting in last.values() for word in ("--set", setting)]
        return ["plans/zero3.lua", "--nproc", ranks, *sets, *options]

    def train(self, *options, code=0, steps=4, ranks=2, settings=()):
        return self.prun(*self.words(*options, steps=steps, ranks=ranks, settings=settings), code=code)

    def kept(self, *words):
        return json.loads(self.prun("runs", *words, "--json").stdout)["runs"]


class Rows(Runs):
    def test_a_row_says_what_the_step_was(self):
        self.train("--metrics", "m")
        found = rows(self.here / "m")
        self.assertEqual([row["step"] for row in found], [1, 2, 3, 4])
        self.assertEqual([row["tokens"] for row in found], [128, 256, 384, 512])
        for row in found:
            self.assertEqual(row["learning_rate"], 3e-4)
            self.assertGreater(row["grad_norm"], 0)
            self.assertGreater(row["memory_bytes"], 1 << 20)
            self.assertLess(abs(row["wall_time"] - time.time()), 100)
        self.assertEqual([row["wall_time"] for row in found], sorted(row["wall_time"] for row in found))

    def test_the_norm_is_the_same_on_every_mesh(self):
        for plan, ranks in (("single", 1), ("zero3", 2), ("megatron", 2), ("1f1b", 2)):
            self.prun(f"plans/{plan}.lua", *self.words()[1:2], ranks, *self.words()[3:], "--metrics", f"{plan}.m")
        single = [row["grad_norm"] for row in rows(self.here / "single.m")]
        for plan in ("zero3", "megatron", "1f1b"):
            for one, other in zip(single, [row["grad_norm"] for row in rows(self.here / f"{plan}.m")], strict=True):
                self.assertAlmostEqual(one, other, delta=1e-4 * one, msg=plan)

    def test_without_clipping_there_is_no_norm(self):
        self.prun(HERE / "diverges.lua", "--set", "lr=0.01", "--metrics", "m")
        self.assertTrue(all("grad_norm" not in row and row["learning_rate"] == 0.01 for row in rows(self.here / "m")))

    def test_a_schedule_of_the_rate(self):
        plan = self.here / "warm.lua"
        plan.write_text((HERE / "diverges.lua").read_text().replace("lr = arg.lr", 'lr = prun.linear { lr = 0.5, warmup = 2 }'))
        self.prun(plan, "--metrics", "m")
        self.assertEqual([row["learning_rate"] for row in rows(self.here / "m")], [0, 0.25, 0.5, 0.375, 0.25, 0.125])


class Sent(Runs):
    def test_what_averages_of_weights_send_is_of_the_step_behind_them(self):
        sets = [word for setting in [*SMALL, "steps=9", "every=4"] for word in ("--set", setting)]
        layer, tables = 12 * 32 * 32 + 13 * 32, 2 * 256 * 32 + 16 * 32
        weights = 4 * (2 * layer + tables + 2 * 32)
        for device in ("cpu", "cpu-queue"):
            with self.subTest(device=device):
                told = self.prun("plans/custom/local_sgd.lua", "--nproc", 2, "--device", device, *sets, "--trace", "t.json").stdout
                found = re.search(r"^sent +(\S+) KiB a rank and step$", told, re.M)
                self.assertIsNotNone(found, told)
                self.assertAlmostEqual(float(found[1]), 2 * weights / 9 / 1024, delta=0.2)  # two averages and nine losses in nine steps


class Modules(Runs):
    def test_a_run_is_repeated_from_its_folder(self):
        (self.here / "plans").mkdir()
        (self.here / "plans/mine.lua").write_text((HERE / "diverges.lua").read_text().replace(
            'local prun = require "prun"', 'local prun = require "prun"\nlocal rate = require "rates.small"').replace("lr = arg.lr", "lr = rate"))
        (self.here / "plans/rates").mkdir()
        module = self.here / "plans/rates/small.lua"
        module.write_text("return 0.01\n")
        self.prun("plans/mine.lua", "--runs", "runs", "--metrics", "a")
        run, = (self.here / "runs").iterdir()
        self.assertEqual((run / "rates/small.lua").read_text(), "return 0.01\n")
        module.write_text("return 0.02\n")  # so this is another run
        self.prun(run / "plan.lua", "--metrics", "b")
        self.assertEqual(*([row["loss"] for row in rows(self.here / name)] for name in "ab"))
        self.prun("plans/mine.lua", "--runs", "runs")
        hashes = {path.name.rsplit("-", 1)[1] for path in (self.here / "runs").iterdir()}
        self.assertEqual(len(hashes), 2)


class TwoNodes(Runs):
    """Two nodes on one machine, over loopback: node 0 has the folders."""

    def nodes(self, *options, codes=(0, 0), meanwhile=lambda nodes: None, ranks=1, steps=4):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "PRUN_SECRET": SECRET}
        nodes = []
        for number in (0, 1):
            own = [option.format(node=number) for option in options]
            words = self.words("--nnodes", 2, "--node-rank", number, "--rendezvous", f"127.0.0.1:{port}", *own, ranks=ranks, steps=steps)
            nodes.append(subprocess.Popen([PRUN, *map(str, words)], cwd=self.here, env=environment, text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
            self.addCleanup(nodes[-1].kill)
        meanwhile(nodes)
        said = [node.communicate(timeout=100) for node in nodes]
        self.assertEqual([node.returncode for node in nodes], list(codes), said)
        return [out + err for out, err in said]

    def test_they_keep_one_run_and_one_checkpoint(self):
        self.nodes("--runs", "runs", "--checkpoint", "kept", "--metrics", "m{node}")
        run, = self.kept()
        self.assertEqual((run["state"], run["nodes"], run["ranks"], run["steps_done"]), ("done", 2, 2, 4))
        self.assertNotIn(SECRET, "".join(path.read_text() for path in pathlib.Path(self.here / run["path"]).iterdir() if path.is_file()))
        self.prun("ckpt", "verify", "kept")
        self.assertEqual(len(rows(self.here / "m0")), 4)
        whole = self.train("--metrics", "whole", steps=6)
        self.assertEqual([row["loss"] for row in rows(self.here / "m0")], [row["loss"] for row in rows(self.here / "whole")][:4], whole.stdout)
        self.nodes("--resume", "auto", "--checkpoint", "kept", "--metrics", "n{node}", steps=6)
        self.assertEqual([row["loss"] for row in rows(self.here / "n0")], [row["loss"] for row in rows(self.here / "whole")][4:])
        self.train("--resume", "kept", "--metrics", "one", steps=8)  # on one node
        self.assertEqual(len(rows(self.here / "one")), 2)

    def test_folders_that_are_not_shared_are_named(self):
        said = self.nodes("--checkpoint", "kept{node}", "--timeout", "3", codes=(15, 15))
        self.assertIn("kept0: rank 1 has written nothing there for 3 s: the folder of --checkpoint has to be one that all nodes share", said[0])

    def test_sigterm_to_one_node_keeps_what_was_trained(self):
        def stop(nodes):
            for line in nodes[0].stdout:
                if line.startswith("step"):
                    break
            for node in nodes:
                node.send_signal(signal.SIGTERM)

        self.nodes("--checkpoint", "kept", "--runs", "runs", codes=(75, 75), meanwhile=stop, steps=100000)
        self.prun("ckpt", "verify", "kept")
        self.assertEqual(self.kept()[0]["state"], "preempted")


class Files(Runs):
    def setUp(self):
        super().setUp()
        self.metrics = self.here / "m.jsonl"

    def test_a_file_with_rows_is_left_alone(self):
        self.train("--metrics", "m.jsonl")
        before = self.metrics.read_text()
        done = self.train("--metrics", "m.jsonl", code=2)
        self.assertEqual(done.stderr, "prun: m.jsonl has the metrics of another run: name another file, or add --overwrite\n")
        self.assertEqual(self.metrics.read_text(), before)
        self.train("--metrics", "m.jsonl", "--overwrite", steps=2)
        self.assertEqual([row["step"] for row in rows(self.metrics)], [1, 2])

    def test_commands_can_be_copied_into_a_shell(self):
        for name in ("my plan (1).lua", "plän.lua"):
            (self.here / name).write_text("""local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world }, model = prun.models.mlp { inputs = 8, outputs = 8, width = 8, layers = 2 },
  data = prun.data.random { batch = 4 }, strategy = { prun.ddp { axis = "dp" } }, optimizer = prun.sgd { lr = 0.1 },
}
""")
            failed = self.prun(name, "--nproc", 2, "--transport", "socket", "--chaos", "flip:rank=0,peer=1@step=3", code=17)
            for start in ("  next:     ", "  kept:     "):
                line = next(line for line in failed.stderr.splitlines() if line.startswith(start))
                command = line.removeprefix(start).split("# ")[-1].replace(" says what each rank was at", "")
                self.prun(*shlex.split(command)[1:])

    def test_a_report_that_nothing_keeps_is_said(self):
        plan = self.here / "plan.lua"
        plan.write_text("""local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world }, model = prun.models.mlp { inputs = 8, outputs = 8, width = 8, layers = 2 },
  data = prun.data.random { batch = 4 }, optimizer = prun.sgd { lr = 0.1 }, steps = 2, report = { every = 1 },
}
""")
        said = "plan.lua:4: the plan reports norms, but nothing keeps them; add --metrics FILE or --runs DIR"
        self.assertIn(said, self.prun("plan.lua").stderr)
        self.assertNotIn(said, self.prun("plan.lua", "--metrics", "m.jsonl").stderr)
        self.assertNotIn(said, self.prun("plan.lua", "--runs", "kept").stderr)

    def test_a_file_of_another_kind_is_kept(self):
        text = self.here / "text"
        text.write_text("a plan, for example\n")
        for options in (["--trace", "text"], ["--metrics", "text"], ["--metrics", "text", "--overwrite"]):
            done = self.train(*options, code=2)
            self.assertIn("to text: the file there is another kind of file and would be lost", done.stderr)
            self.assertEqual(text.read_text(), "a plan, for example\n")
        done = self.prun("calibrate", "--output", "text", code=2)
        self.assertIn("cannot write the cluster file to text", done.stderr)
        for _ in range(2):
            self.train("--trace", "trace.json")

    def test_an_empty_file_a_device_and_a_pipe_are_written(self):
        self.metrics.touch()
        self.train("--metrics", "m.jsonl")
        self.assertEqual(len(rows(self.metrics)), 4)
        self.train("--metrics", "/dev/null")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        for name in ("-", "/dev/stdout"):
            done = self.train("--metrics", name)
            self.assertEqual([json.loads(line)["step"] for line in done.stdout.splitlines()], [1, 2, 3, 4])
            self.assertIn("loss  ", done.stderr)
        fifo = self.here / "fifo"
        os.mkfifo(fifo)
        reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE, text=True)
        self.train("--metrics", fifo)
        self.assertEqual(len(reader.communicate()[0].splitlines()), 4)

    def test_standard_output_that_is_a_file_is_not_begun_anew(self):
        log = self.here / "log"
        log.write_text("before\n")
        with log.open("a") as out:
            subprocess.run([PRUN, *map(str, self.words("--metrics", "/dev/stdout"))], stdout=out, stderr=subprocess.DEVNULL, check=True)
        lines = log.read_text().splitlines()
        self.assertEqual((lines[0], len(lines)), ("before", 5))

    def test_a_run_that_goes_on_goes_on_in_its_file(self):
        self.train("--metrics", "whole")
        self.train("--checkpoint", "ck", "--metrics", "m.jsonl", steps=2)
        self.train("--checkpoint", "ck", "--resume", "auto", "--metrics", "m.jsonl", steps=4)
        self.assertEqual([(row["step"], row["loss"], row["tokens"]) for row in rows(self.metrics)],
                         [(row["step"], row["loss"], row["tokens"]) for row in rows(self.here / "whole")])

    def test_rows_of_steps_that_come_again_are_replaced_with_their_reports(self):
        self.train("--checkpoint", "ck", steps=2)
        old = [{"step": step, "loss": 9} for step in (1, 2, 3)]
        old[1:1] = [{"step": 3, "report": {}}]  # one rank was faster than the launcher
        torn = '{"step":4,"lo'
        self.metrics.write_text("".join(json.dumps(row) + "\n" for row in old) + torn)
        done = self.train("--resume", "ck", "--metrics", "m.jsonl", steps=4)
        self.assertIn("prun: m.jsonl: 2 rows of steps after 2, which come again, are replaced\n", done.stderr)
        found = rows(self.metrics)
        self.assertEqual([row["step"] for row in found], [1, 2, 3, 4])
        self.assertEqual(found[:2], [old[0], old[2]])

    def test_killed_at_random_no_step_stands_twice(self):
        for turn in range(3):
            run = subprocess.Popen([PRUN, *map(str, self.words("--metrics", "m.jsonl", "--checkpoint", "ck", "--checkpoint-every", "2",
                                                              "--resume", "auto", steps=100000))],
                                   cwd=self.here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if turn == 0:
                faults.wait_for(lambda: self.metrics.exists() and self.metrics.read_text().count("\n") > 1, "step 2")
            time.sleep(0.4 + 0.1 * turn)
            run.send_signal(signal.SIGKILL)
            run.wait()
        last = max(row["step"] for row in rows(self.metrics)[:-1])
        self.train("--metrics", "m.jsonl", "--checkpoint", "ck", "--resume", "auto", steps=last + 50)
        steps = [row["step"] for row in rows(self.metrics)]
        self.assertEqual(len(steps), len(set(steps)))
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(steps[-1], last + 50)

    def test_rows_that_are_missing_are_said(self):
        self.train("--checkpoint", "ck", steps=3)
        self.metrics.write_text('{"step":1,"loss":5}\n')
        done = self.train("--resume", "ck", "--metrics", "m.jsonl", steps=4)
        self.assertIn("prun: m.jsonl has no rows of steps 2 to 3: the run before ended before it wrote them\n", done.stderr)

    def test_what_is_no_row_is_left_alone(self):
        self.train("--checkpoint", "ck", steps=2)
        self.metrics.write_text('{"step":1,"loss":5}\nstep 2\n')
        done = self.train("--resume", "ck", "--metrics", "m.jsonl", code=2)
        self.assertEqual(done.stderr, "prun: m.jsonl:2 is not a row of metrics; name another file, or add --overwrite\n")
        self.assertEqual(self.metrics.read_text(), '{"step":1,"loss":5}\nstep 2\n')

    def test_two_runs_do_not_write_one_file(self):
        other = subprocess.Popen([PRUN, *map(str, self.words("--metrics", "m.jsonl", steps=1000000))], cwd=self.here,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        other.stdout.readline()
        done = self.train("--metrics", "m.jsonl", "--overwrite", code=2)
        other.kill()
        other.communicate()
        self.assertEqual(done.stderr, "prun: another run writes its metrics to m.jsonl: give this one a file of its own\n")


class Words(Runs):
    def test_a_loss_that_is_not_a_number_is_said_once_with_the_flag_that_finds_its_cause(self):
        done = self.prun(HERE / "diverges.lua")
        said = re.findall(r"prun: the loss of step \d is (?:NaN|infinite): --check-finite ends the run at the op that makes the first NaN or infinity\n",
                          done.stderr)
        self.assertEqual("".join(said), done.stderr)
        self.assertEqual(len(said), 1)
        found = self.prun(HERE / "diverges.lua", "--check-finite", code=20)
        self.assertNotIn("--check-finite ends", found.stderr)

    def test_parameters_are_counted_once(self):
        # embedding and positions, the head with its norm, and two layers: three norms' worth of vectors and four
        # matrices
        layer = 4 * 32 + 32 * 96 + 96 + 32 * 32 + 32 + 32 * 128 + 128 + 128 * 32 + 32
        count = 256 * 32 + 16 * 32 + 2 * 32 + 32 * 256 + 2 * layer
        for plan, ranks in (("single", 1), ("zero3", 2), ("megatron", 2), ("1f1b", 2)):
            words = [f"plans/{plan}.lua", "--nproc", ranks, *self.words()[3:]]
            self.assertIn(f": {count:,} parameters, 4 steps, ", self.prun(*words).stdout, plan)
            self.assertIn(f"\n{count:,} parameters\n", self.prun("check", *words).stdout, plan)
            self.assertEqual(json.loads(self.prun("check", *words, "--json").stdout)["parameters"], count, plan)


class Folders(Runs):
    def test_a_folder_has_what_the_run_was(self):
        done = self.prun(*self.words("--runs", "R", "--checkpoint", "ck", "--metrics", "m"), PRUN_SECRET=SECRET, PRUN_API_TOKEN=SECRET,
                         AWS_ACCESS_KEY_ID=SECRET, MY_SETTING=SECRET, OMP_PROC_BIND="close")
        [run] = self.kept("R")
        folder = self.here / run["path"]
        self.assertRegex(run["id"], r"^\d{8}-\d{6}-zero3-[0-9a-f]{6}$")
        self.assertEqual(sorted(path.name for path in folder.iterdir()),
                         ["checkpoints", "environment.json", "events.jsonl", "log.txt", "metrics.jsonl", "plan.lua", "run.json"])
        self.assertIn("prun.zero3", (folder / "plan.lua").read_text())
        self.assertEqual((folder / "log.txt").read_text(), done.stdout)
        self.assertEqual((folder / "metrics.jsonl").read_text(), (self.here / "m").read_text())
        self.assertEqual(os.readlink(folder / "checkpoints"), "../../ck")
        self.assertEqual(json.loads((folder / "environment.json").read_text())["variables"]["OMP_PROC_BIND"], "close")
        for path in folder.iterdir():
            if path.is_file():
                self.assertNotIn(SECRET, path.read_text(), path)
        self.assertEqual(run["arguments"], [str(word) for word in self.words("--runs", "R", "--checkpoint", "ck", "--metrics", "m")])
        for key, value in {"state": "done", "exit_code": 0, "steps": 4, "steps_done": 4, "ranks": 2, "mesh": "dp=2", "checkpoints": "../../ck",
                           "resumed_from": None}.items():
            self.assertEqual(run[key], value, key)
        self.assertEqual([run["loss"]["first"], run["loss"]["last"]], [row["loss"] for row in rows(self.here / "m")][::3])

    def test_checkpoint_asks_for_one_and_a_plain_run_has_none(self):
        self.train()
        self.assertEqual(list(self.here.iterdir()), [])
        self.train("--checkpoint", "ck", steps=2)
        self.train("--checkpoint", "ck", "--resume", "auto", steps=4)
        first, second = sorted(self.kept(), key=lambda run: run["steps"])
        self.assertEqual(pathlib.Path(first["path"]).parent, pathlib.Path("runs"))
        self.assertEqual((first["begin"]["step"], second["begin"]["step"]), (0, 2))
        self.assertEqual(second["resumed_from"], "../../ck/step_00000002")
        self.assertEqual([row["step"] for row in rows(self.here / second["path"] / "metrics.jsonl")], [3, 4])

    def test_a_warning_before_ranks_start_is_an_event(self):
        self.train("--checkpoint", "ck", steps=2)
        self.train("--checkpoint", "ck", "--resume", "auto", "--kernels", "any", steps=4)
        second = max(self.kept(), key=lambda run: run["steps"])
        events = [json.loads(line) for line in (self.here / second["path"] / "events.jsonl").read_text().splitlines()]
        first = next(event for event in events if event["event"] == "warning")
        self.assertIn("and --kernels asks for others", first["text"])
        self.assertLess(events.index(first), [event["event"] for event in events].index("started"))

    def test_a_name_stands_in_the_place_of_the_plan(self):
        self.train("--runs", "R", "--name", "lr-sweep_3")
        self.assertRegex(self.kept("R")[0]["id"], r"^\d{8}-\d{6}-lr-sweep_3-[0-9a-f]{6}$")

    def test_the_same_training_has_the_same_hash(self):
        for steps in (2, 2, 3):
            self.train("--runs", "R", steps=steps)
        hashes = [re.search(r"zero3-(......)", run["id"])[1] for run in sorted(self.kept("R"), key=lambda run: run["steps"])]
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[1], hashes[2])

    def test_a_failure_keeps_what_there_was(self):
        done = self.prun(HERE / "diverges.lua", "--check-finite", "--set", "steps=100", "--nproc", 2, code=20)
        [run] = self.kept()
        self.assertTrue(done.stderr.endswith(f"  kept:     {run['path']}   # prun explain {run['path']} says what each rank was at\n"), done.stderr)
        failure = json.loads((self.here / run["path"] / "failure.json").read_text())
        self.assertEqual(failure["code"], 20)
        self.assertIn(failure["what"], done.stderr)
        self.assertEqual(run["state"], "failed")
        found = rows(self.here / run["path"] / "metrics.jsonl")
        self.assertEqual([row["step"] for row in found], list(range(1, run["steps_done"] + 1)))
        self.assertIn(failure["what"], (self.here / run["path"] / "log.txt").read_text())
        self.assertRegex(self.prun("runs").stdout, r"^\d{8}-\d{6}-diverges-[0-9a-f]{6}  failed \(20\) ")
        self.assertIn(f"  next:     prun {HERE}/diverges.lua --nproc 2 --set steps=100 --metrics metrics.jsonl ", done.stderr)

    def test_explain_takes_the_newest_run_that_failed(self):
        for _ in range(2):
            self.train("--runs", "runs", steps=1)
        newest = ", ".join(sorted((path.name for path in self.here.glob("runs/*")), reverse=True))
        self.assertEqual(self.prun("explain", "runs", code=2).stderr,
                         f"prun: no run in runs has failed; the newest: {newest} (`prun runs` lists them)\n")
        self.prun(HERE / "diverges.lua", "--check-finite", "--set", "steps=100", "--nproc", 2, code=20)
        [failed] = [run["id"] for run in self.kept() if run["state"] == "failed"]
        self.train("--runs", "runs", steps=1)
        self.assertTrue(self.prun("explain", "runs").stdout.startswith(f"{failed}: ended\n"))

    def test_a_run_that_goes_on_and_one_that_was_killed(self):
        run = subprocess.Popen([PRUN, *map(str, self.words("--runs", "R", steps=1000000))], cwd=self.here, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        faults.wait_for(lambda: any(path.stat().st_size > 0 for path in self.here.glob("R/*/metrics.jsonl")), "step 1")
        [going] = self.kept("R")
        run.send_signal(signal.SIGKILL)
        run.wait()
        self.assertEqual(going["state"], "running")
        self.assertGreater(going["steps_done"], 0)
        faults.wait_for(lambda: self.kept("R")[0]["state"] != "running", "the end of the ranks, shortly after their launcher")
        [killed] = self.kept("R")
        self.assertEqual(killed["state"], "killed")

    def test_what_cannot_be_read_is_listed(self):
        for name, text in (("broken", "{"), ("cut", '{"format": 1, "id": "x"}'), ("newer", '{"format": 99, "id": "x"}')):
            (self.here / "runs" / name).mkdir(parents=True)
            (self.here / "runs" / name / "run.json").write_text(text)
        (self.here / "runs" / "a-checkpoint").mkdir()
        self.assertEqual(self.prun("runs").stdout, "broken  runs/broken/run.json is damaged\ncut     runs/cut/run.json is damaged\n"
                         "newer   runs/newer/run.json is of a newer prun\n")

    def test_a_folder_that_cannot_be_made(self):
        (self.here / "file").touch()
        done = self.train("--runs", "file", code=2)
        self.assertEqual(done.stderr, "prun: cannot make a folder for this run in file: Not a directory\n")
        (self.here / "runs").touch()
        done = self.train("--checkpoint", "ck")
        self.assertEqual(done.stderr, "prun: cannot make a folder for this run in runs: Not a directory (--runs DIR names another)\n")

    def test_a_folder_is_moved_with_its_checkpoints(self):
        self.train("--runs", "all/R", "--checkpoint", "all/ck")
        (self.here / "all").rename(self.here / "moved")
        [run] = self.kept("moved/R")
        self.assertTrue((self.here / run["path"] / "checkpoints" / "step_00000004").is_dir())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
