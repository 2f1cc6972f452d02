#!/usr/bin/env python3
"""prun.fit trains a PyTorch module on several meshes. Needs torch, in a virtual environment that pip fills once.
Usage: fit_test.py PRUN VENV
"""
import contextlib
import copy
import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
if __name__ == "__main__":
    import packages
    packages.run_inside(__file__, sys.argv[2])
os.environ["PRUN_COMMAND"] = os.path.abspath(sys.argv[1])
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(TOP / "tools/python"), str(TOP / "tests/python")]
import numpy  # noqa: E402
import processes  # noqa: E402
import prun  # noqa: E402
import torch  # noqa: E402
from prun import scratch  # noqa: E402
from prun.export.template import Choices  # noqa: E402
from small_gpt import GPT  # noqa: E402

TEXT = numpy.frombuffer((TOP / "plans/text/sample.txt").read_bytes(), "u1")
CONTEXT = 32


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 2)

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.last(torch.nn.functional.gelu(self.first(x))), y)


class Fit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        torch.manual_seed(1)

    def loss(self, module, tokens):
        """The mean over the windows that an evaluation reads."""
        count = (len(tokens) - 1) // CONTEXT
        ids = torch.from_numpy(tokens.astype("i8"))
        with torch.no_grad():
            return module(ids[:count * CONTEXT].view(count, CONTEXT), ids[1:count * CONTEXT + 1].view(count, CONTEXT))[1].item()

    def test_weights_are_those_of_the_last_step_on_every_mesh(self):
        module, trained = GPT().eval(), []
        for mesh, micro in (("dp=1", 1), ("dp=2", 1), ("pp=2, dp=2, tp=2", 2)):
            copied = copy.deepcopy(module)
            rows = prun.fit(copied, TEXT, steps=4, batch=8, context=CONTEXT, mesh=mesh, micro=micro, eval=TEXT[:2000], eval_every=4)
            self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4])
            self.assertAlmostEqual(self.loss(copied, TEXT[:2000]), rows[-1]["eval_loss"], delta=1e-5)
            self.assertLess(rows[-1]["loss"], rows[0]["loss"])
            self.assertFalse(copied.training or copied.transformer.h.training)
            trained.append(rows[-1]["loss"])
        self.assertLess(max(trained) - min(trained), 1e-4)

    def test_steps_are_those_of_pytorch(self):
        """SGD over all samples of arrays in each step: the same gradient whatever the order."""
        module = Regression()
        x, y = torch.randn(8, 6), torch.randn(8, 2)
        mine = copy.deepcopy(module)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            mine(x, y).backward()
            optimizer.step()
        prun.fit(module, (x, y), steps=3, batch=8, mesh="dp=2", optimizer="sgd", lr=0.1)
        for one, other in zip(module.parameters(), mine.parameters()):
            self.assertLess((one - other).abs().max().item(), 1e-5)

    def test_checkpoint_and_resume(self):
        module = GPT()
        prun.fit(module, TEXT, steps=2, batch=8, context=CONTEXT, checkpoint="kept")
        rows = prun.fit(module, TEXT, steps=4, batch=8, context=CONTEXT, checkpoint="kept", resume="auto")
        self.assertEqual([row["step"] for row in rows], [3, 4])

    def test_a_checkpoint_goes_into_another_module(self):
        module = GPT()
        example = (torch.zeros(1, CONTEXT, dtype=torch.int64),) * 2
        prun.fit(module, TEXT, steps=2, batch=8, context=CONTEXT, checkpoint="kept", mesh="tp=2")
        [step] = pathlib.Path("kept").glob("step_*")
        for place in ("kept", step):
            other = GPT()
            prun.export(other, example).load(place)
            for name, value in module.state_dict().items():
                self.assertTrue(torch.equal(value, other.state_dict()[name]), name)
        larger = GPT(layers=3, width=128)
        before = copy.deepcopy(larger.state_dict())
        with self.assertRaisesRegex(prun.PrunError, r"embed.token.weight is \[256, 64\], and the plan's is \[256, 128\]; "
                                    "the weights are of another plan"):
            prun.export(larger, example).load("kept")
        with self.assertRaisesRegex(prun.PrunError, "the weights have no h2"):
            prun.export(GPT(layers=3), example).load("kept")
        with self.assertRaisesRegex(prun.CheckpointError, "nowhere has no checkpoint"):
            prun.export(other, example).load("nowhere")
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in larger.state_dict().items()))

    def test_on_step_stops_and_the_module_has_that_step(self):
        one, two = GPT(), GPT()
        two.load_state_dict(one.state_dict())
        rows = prun.fit(one, TEXT, steps=100000, batch=8, context=CONTEXT, on_step=lambda row: row["step"] < 3)
        self.assertLess(len(rows), 100000)
        prun.fit(two, TEXT, steps=rows[-1]["step"], batch=8, context=CONTEXT)
        for name, value in one.state_dict().items():
            self.assertTrue(torch.equal(value, two.state_dict()[name]), name)

    def test_strategies_optimizers_and_types(self):
        x, y = torch.randn(64, 6), torch.randn(64, 2)
        text = 'prun.ddp { axis = "a" }, prun.ddp { axis = "b" }'
        losses = [prun.fit(copied, (x, y), steps=2, eval=(x, y), **options)[-1]["eval_loss"] for options in (
            {}, {"mesh": "dp=2", "strategy": "zero1"}, {"mesh": {"dp": 2}, "strategy": 'prun.ddp { axis = "dp" }'},
            {"mesh": "a=2, b=2", "strategy": text}, {"optimizer": "prun.adamw { lr = 1e-3, weight_decay = 0.01 }"},
            {"optimizer": "adam", "weight_decay": 0.0, "lr": 1e-3}, {"lr": "prun.cosine { lr = 1e-3, least = 1e-3 }"}, {"dtype": "bf16"})
            for copied in [copy.deepcopy(self.regression())]]
        for loss in losses[1:-1]:
            self.assertAlmostEqual(loss, losses[0], delta=1e-5)
        self.assertAlmostEqual(losses[-1], losses[0], delta=0.05)
        self.assertNotEqual(losses[-1], losses[0])

    def test_the_plan_is_written_with_the_choices(self):
        """No part of an exported plan is replaced: the text of one without choices has no trace of an evaluation."""
        exported = prun.export(GPT(), (torch.zeros(1, CONTEXT, dtype=torch.int64),) * 2)
        plan = exported.save("mine", Choices(mesh="dp = 2", arguments=(), strategy=['prun.ddp { axis = "dp" }'],
                                             optimizer="prun.sgd { lr = 0.5 }", evaluate=True)).read_text()
        for line in ("  mesh  = prun.mesh { dp = 2 },", '    prun.ddp { axis = "dp" },', "  optimizer = prun.sgd { lr = 0.5 },",
                     '  from = "mine.weights",  -- the module\'s weights'):
            self.assertIn(line + "\n", plan)
        self.assertIn('eval      = prun.eval { every = arg.eval_every, batches = "all", data = prun.data.tokens { path = '
                      "arg.eval_file, batch = arg.batch, ", plan)
        self.assertNotIn("arg.tp", plan)
        self.assertNotIn("eval", exported.plan)
        self.assertIn('prun.pipeline { axis = "pp" },\n', exported.plan)
        self.assertLessEqual(len(plan.splitlines()), 60)
        tokens = self.tokens()
        rows = prun.run("mine.lua", nproc=2, set={"file": tokens, "eval_file": tokens, "eval_every": 2, "steps": 2})
        self.assertIn("eval_loss", rows[1])

    def test_a_config_does_not_make_a_module_of_transformers(self):
        """nanoGPT has a config, too, and no labels."""
        module = GPT()
        module.config = {"vocab": 256}
        self.assertEqual(len(prun.fit(module, TEXT, steps=1, context=CONTEXT)), 1)

    def test_a_process_with_threads(self):
        """Its threads hold locks of the allocator and of PyTorch at any time."""
        ends, threads = threading.Event(), []

        def computes():
            while not ends.is_set():
                torch.randn(50, 50).matmul(torch.randn(50, 50)).sum().item()

        for _ in range(4):
            threads.append(threading.Thread(target=computes))
            threads[-1].start()
        try:
            self.assertEqual(len(prun.fit(self.regression(), (torch.randn(8, 6), torch.randn(8, 2)), steps=3, mesh="dp=2")), 3)
        finally:
            ends.set()
            for thread in threads:
                thread.join()

    def test_failures_keep_what_they_name(self):
        data = torch.randn(8, 6), torch.randn(8, 2)
        with self.assertRaisesRegex(prun.PlanError, "no 'zero9'") as caught:
            prun.fit(self.regression(), data, strategy="zero9")
        self.assertEqual(caught.exception.__notes__, [
            f'line {caught.exception.line} of the plan: prun.zero9 {{ axis = "dp" }},'])
        module = self.regression()
        before = copy.deepcopy(module.state_dict())
        with self.assertRaises(prun.RankFailed) as caught:
            prun.fit(module, data, mesh="dp=2", chaos="kill:rank=1@step=3")
        self.assertTrue(pathlib.Path(caught.exception.run, "failure.json").is_file(), caught.exception.run)
        self.assertEqual(list(pathlib.Path(scratch.SHARED_MEMORY).glob("prun-fit-*/model.lua")), [])
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in module.state_dict().items()))

    def test_gpt2_is_exported_in_ten_seconds(self):
        """124 million parameters, with the weights' file; in seconds of this process, because other tests run, too."""
        module = GPT(vocab=50257, layers=12, width=768, heads=12, context=1024)
        self.assertGreater(sum(each.numel() for each in module.parameters()), 124e6)
        begin = time.process_time()
        exported = prun.export(module, (torch.zeros(1, 1024, dtype=torch.int64),) * 2)
        with tempfile.TemporaryDirectory(dir=scratch.SHARED_MEMORY) as folder:
            exported.save(f"{folder}/gpt2")
        seconds = time.process_time() - begin
        print(f"GPT-2 124M exports in {seconds:.1f} s")
        self.assertLess(seconds, 10)

    def test_the_bar_ends_its_line(self):
        data = torch.randn(8, 6), torch.randn(8, 2)
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            prun.fit(self.regression(), data, steps=3, progress=True)
        self.assertRegex(printed.getvalue(), r"^\r 33%\|#{7} {13}\| 1/3 \[[^\r]*\] \r[^\r]*\r100%\|#{20}\| 3/3 "
                         r"\[\d+s<0s, [\d.]+it/s, loss=[\d.e-]+\] \n$")
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            prun.fit(self.regression(), data, steps=200000, progress=True, on_step=lambda row: False)
        self.assertIn("| 1/200000 [", printed.getvalue())
        self.assertTrue(printed.getvalue().endswith("\n"), printed.getvalue()[-200:])
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            prun.fit(self.regression(), data, steps=3)
        self.assertEqual(printed.getvalue(), "")  # no terminal

    def regression(self):
        torch.manual_seed(2)
        return Regression()

    def test_mistakes(self):
        module = GPT()
        for problem, data, options in (
                ("needs context=N", TEXT, {}), ("a sample of context=99999999", TEXT, {"context": 99999999}),
                ("mesh should be like", TEXT, {"mesh": "8", "context": 8}), ("data should be a token file", [1, 2], {}),
                ("mesh should be like", TEXT, {"mesh": "dp=2, dp=2", "context": 8}),
                ("mesh should be like", TEXT, {"mesh": "dp=0", "context": 8}),
                ("mesh should be like", TEXT, {"mesh": 8, "context": 8}),
                ("no strategy for the axis 'ep'", TEXT, {"mesh": "ep=2", "context": CONTEXT}),
                ("strategy='ddp' is for the axis 'dp', which the mesh lacks", TEXT, {"mesh": "tp=2", "strategy": "ddp"}),
                ("no option 'nproc': mesh='dp=2' starts two ranks", TEXT, {"nproc": 2}),
                ("no option --epochs", TEXT, {"epochs": 3, "context": CONTEXT}),
                (r"missing\.bin: No such file .*; data is a token file, an array", "missing.bin", {"context": CONTEXT}),
                ("token ids from 0, is float64", numpy.ones(9), {})):
            with self.assertRaisesRegex(prun.UsageError, problem):
                prun.fit(module, data, **options)
        os.environ["WORLD_SIZE"] = "2"
        self.addCleanup(os.environ.pop, "WORLD_SIZE")
        with self.assertRaisesRegex(prun.UsageError, "prun.fit starts the ranks itself: run this program with python, "
                                    "without torchrun") as caught:
            prun.fit(module, TEXT, context=CONTEXT)
        self.assertEqual(caught.exception.next, "python train.py")

    def test_readme(self):
        """The program of README.md, as it is written there."""
        code = (TOP / "README.md").read_text().split("## You have a PyTorch program")[1].split("```python\n")[1].split("```")[0]
        pathlib.Path("model.py").write_text("from small_gpt import GPT\n")
        pathlib.Path("text.txt").write_bytes(TEXT.tobytes())
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
            **os.environ, "PYTHONPATH": f"{TOP / 'tools/python'}:{TOP / 'tests/python'}:."})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(done.stdout), 5.5)
        self.assertLessEqual(len(pathlib.Path("gpt.lua").read_text().splitlines()), 60)
        rows = prun.run("gpt.lua", nproc=2, set={"file": self.tokens(), "steps": 1, "batch": 8})
        self.assertLess(rows[0]["loss"], 5.5)

    def tokens(self):
        """Writes a token file."""
        pathlib.Path("train.bin").write_bytes(TEXT.astype("<u2").tobytes())
        return os.path.abspath("train.bin")

    def test_functions_are_functions(self):
        import prun.export  # noqa: F401
        import prun.fit  # noqa: F401
        self.assertTrue(callable(prun.export) and callable(prun.fit))


class Scratch(unittest.TestCase):
    """Where weights go. A folder of the test stands for /dev/shm."""

    SCRIPT = ("import numpy, prun, signal, sys, torch\n"
              "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job of a script's background ignores it
              "import prun.scratch\n"
              "prun.scratch.SHARED_MEMORY = 'shm'\n"
              "from small_gpt import GPT\n"
              "module = GPT()\n"
              "before = [each.clone() for each in module.parameters()]\n"
              "def on_step(row):\n"
              "    if row['step'] == 3: print('runs', flush=True)\n"
              "try:\n"
              "    prun.fit(module, numpy.arange(9999) % 256, steps=200000, context=32, mesh='dp=2', on_step=on_step)\n"
              "except KeyboardInterrupt:\n"
              "    print(all(map(torch.equal, before, module.parameters())), flush=True)\n")

    def setUp(self):
        Fit.setUp(self)
        self.addCleanup(setattr, scratch, "SHARED_MEMORY", scratch.SHARED_MEMORY)
        scratch.SHARED_MEMORY = os.path.abspath("shm")
        os.mkdir("shm")

    def left(self):
        return [folder.name for folder in pathlib.Path("shm").glob("*")]

    def place_of_weights(self, free):
        """Returns where fit puts the weights if shared memory has so many bytes, and other folders have one byte more."""
        seen = []

        def on_step(row):
            seen.extend(path for place in ("shm", "tmp") for path in pathlib.Path(place).glob("*/model.weights/*.safetensors"))
            seen.extend(path for place in ("shm", "tmp") for path in pathlib.Path(place).glob("*/checkpoint"))

        with mock.patch.object(scratch.shutil, "disk_usage", lambda place: mock.Mock(
                free=free if place == scratch.SHARED_MEMORY else max(free + 1, 99))), \
                mock.patch.object(tempfile, "tempdir", os.path.abspath("tmp")):
            os.makedirs("tmp", exist_ok=True)
            prun.fit(Regression(), (torch.randn(8, 6), torch.randn(8, 2)), steps=1, on_step=on_step)
        self.assertEqual(self.left() + os.listdir("tmp"), [])
        self.assertEqual({path.name for path in seen}, {"model.safetensors", "checkpoint"})
        return {path.parts[0] for path in seen}

    def test_weights_go_through_shared_memory_if_they_fit(self):
        size = 5 * 4 * (6 * 16 + 16 + 16 * 2 + 2) + 8 * 8 * (6 + 2)  # weights and their checkpoints, data
        self.assertEqual(self.place_of_weights(size + 1), {"shm"})
        self.assertEqual(self.place_of_weights(size), {"tmp"})
        with self.assertRaisesRegex(prun.UsageError, "tmp has 0 MiB free, and .* name another folder by TMPDIR"):
            self.place_of_weights(9)

    def start(self):
        process = subprocess.Popen([sys.executable, "-c", self.SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "runs\n")
        ranks = processes.descendants(process.pid)
        self.assertGreaterEqual(len(ranks), 3)  # the command and two ranks
        return process, ranks

    def test_ctrl_c_leaves_the_module_and_no_files(self):
        process, ranks = self.start()
        self.assertEqual(len(self.left()), 1)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "True\n")
        self.assertEqual(process.wait(30), 0)
        self.assertTrue(all(processes.ends(pid, 5) for pid in ranks))
        self.assertEqual(self.left(), [])

    def test_a_killed_interpreter_ends_the_job_and_the_next_call_removes_its_files(self):
        process, ranks = self.start()
        [folder] = self.left()
        os.utime(f"shm/{folder}", (0, 0))
        scratch.remove_left_over()
        self.assertEqual(self.left(), [folder])  # in use
        process.kill()
        process.wait()
        self.assertTrue(all(processes.ends(pid, 15) for pid in ranks))
        os.utime(f"shm/{folder}")
        scratch.remove_left_over()
        self.assertEqual(self.left(), [folder])  # so young that its owner may not have locked it yet
        os.utime(f"shm/{folder}", (0, 0))
        prun.fit(Regression(), (torch.randn(8, 6), torch.randn(8, 2)), steps=1)
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
