#!/usr/bin/env python3
"""prun.fit trains a PyTorch module on several meshes. Needs torch, in a virtual environment that pip fills once.
Usage: fit_test.py PRUN VENV
"""
import copy
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
if __name__ == "__main__":
    import packages
    packages.run_inside(__file__, sys.argv[2])
os.environ["PRUN_COMMAND"] = os.path.abspath(sys.argv[1])
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(TOP / "tools/python"), str(TOP / "tests/python")]
import numpy  # noqa: E402
import prun  # noqa: E402
import torch  # noqa: E402
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

    def test_mistakes(self):
        module = GPT()
        for problem, data, options in (
                ("needs context=N", TEXT, {}), ("a sample of context=99999999", TEXT, {"context": 99999999}),
                ("mesh should be like", TEXT, {"mesh": "8", "context": 8}), ("data should be a token file", [1, 2], {}),
                ("no strategy for the axis 'ep'", TEXT, {"mesh": "ep=2", "context": CONTEXT}),
                ("token ids from 0, is float64", numpy.ones(9), {})):
            with self.assertRaisesRegex(prun.UsageError, problem):
                prun.fit(module, data, **options)
        os.environ["WORLD_SIZE"] = "2"
        self.addCleanup(os.environ.pop, "WORLD_SIZE")
        with self.assertRaisesRegex(prun.UsageError, "without torchrun"):
            prun.fit(module, TEXT, context=CONTEXT)

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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
