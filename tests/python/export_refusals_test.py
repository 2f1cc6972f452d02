#!/usr/bin/env python3
"""Modules that no plan can express are rejected with the Python line, the op, and the likely way round.

Usage: export_refusals_test.py PRUN VENV. VENV: see export_families_test.py.
"""
import contextlib
import inspect
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import packages  # noqa: E402

packages.run_inside(__file__, sys.argv[2])
import torch  # noqa: E402

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]
import refused  # noqa: E402
from prun.errors import PrunError  # noqa: E402
from prun.export import ExportError, export  # noqa: E402

ROWS = torch.randn(4, 8), torch.randn(4, 4)
IDS = torch.randint(0, 8, (2, 6)), torch.randint(0, 8, (2, 6))
# module -> op ("" = any), problem, hint
CASES = {
    "Branch": ("", "control flow that depends on the data", "remove the branch"),
    "Item": ("item", "prun has no function for it", "depends on the data"),
    "TwoLosses": ("", "2 losses", "return one of them"),
    "Sum": ("add", "a loss that is changed or added", "one cross_entropy or mse_loss"),
    "NoLoss": ("", "the module returns no loss", "return F.cross_entropy"),
    "Thrice": ("linear", "the weight a.weight is used twice", "weights of their own"),
    "TiedThrice": ("linear", "weight", "logits' layer"),
    "Statistics": ("add_", "forward changes a buffer", "BatchNorm"),
    "Counter": ("add_", "forward changes a buffer, b_count", "between steps"),
    "Modes": ("mul", "differs between train and eval mode", "a plan evaluates"),
    "NoGrad": ("", "a region without gradients", "outside the module"),
    "Detached": ("detach", "prun has no function for it", "no stop of gradients"),
    "Autocast": ("", "a region without gradients or with another precision", "remove the region"),
    "Random": ("randn_like", "prun has no function for it", "only nn.Dropout is random"),
    "Softmax": ("softmax", "prun has no function for it", "attention is recognised"),
    "Broadcast": ("", "prun has no function for it", ""),
    "NoShift": ("layer_norm", "without a scale or without a shift", "bias=True"),
    "Smoothed": ("cross_entropy_loss", "label smoothing", "label_smoothing=0"),
}


def line_of(module):
    """Returns the line that "# here" marks, 0 if none."""
    lines, first = inspect.getsourcelines(type(module))
    return next((first + i for i, line in enumerate(lines) if "# here" in line), 0)


class Refusals(unittest.TestCase):
    def refused(self, module, example, problem, hint="", op="", line=0):
        printed = io.StringIO()
        with self.assertRaises(ExportError) as caught, contextlib.redirect_stdout(printed), \
                contextlib.redirect_stderr(printed):
            export(module, example)
        error = caught.exception
        self.assertIn(problem, error.problem)
        self.assertIn(hint, error.hint)
        self.assertEqual(printed.getvalue(), "")
        if op:
            self.assertEqual(error.op, op)
        if line:
            self.assertEqual((error.file, error.line), (refused.__file__, line), error)
            self.assertTrue(str(error).startswith(f"{refused.__file__}:{line}: "), error)
        self.assertIsInstance(error, PrunError)

    def test_modules(self):
        for name, (op, problem, hint) in CASES.items():
            with self.subTest(module=name):
                module = getattr(refused, name)()
                self.refused(module, IDS if name == "TiedThrice" else ROWS, problem, hint, op, line_of(module))

    def test_the_good_one(self):
        self.assertIn("nn.relu", export(refused.Good(), ROWS).plan)

    def test_attention(self):
        self.assertIn("nn.attention", export(refused.Attention(), IDS).plan)
        line = line_of(refused.Attention())
        for module, problem, hint in [
            (refused.Attention(dropout_p=0.1), "dropout of 0.1 on attention weights", "attn_pdrop"),
            (refused.Attention(scale=1.0), "scores scaled by 1", "1 / sqrt(8)"),
            (refused.Attention(is_causal=False, attn_mask=torch.ones(6, 6).tril().triu(-2).bool()),
             "neither causal nor empty", "sliding window"),
            (refused.Attention(lambda q: torch.nn.functional.normalize(q, dim=-1)), "not the heads of one linear layer",
             "norms of q and k"),
            (refused.Attention(lambda q: q + 1), "changed before attention", ""),
        ]:
            with self.subTest(problem=problem):
                self.refused(module, IDS, problem, hint, line=line if "changed" not in problem else 0)

    def test_modules_as_they_are_given(self):
        hooked, frozen, mixed = refused.Good(), refused.Good(), refused.Good()
        hooked.a.register_forward_hook(lambda *_: None)
        frozen.a.weight.requires_grad_(False)
        mixed.dropout.eval()
        normed = refused.Good()
        torch.nn.utils.parametrizations.weight_norm(normed.a)
        for module, problem, hint in [
            (hooked, "a has forward hooks", "remove them"),
            (frozen, "a.weight is frozen", "requires_grad=True"),
            (mixed, "dropout is in eval mode", "module.train()"),
            (normed, "parametrizations", "remove_parametrizations"),
            (refused.Good().half(), "a.weight is float16", "module.float()"),
            (refused.Good().bfloat16(), "a.weight is bfloat16", "module.float()"),
            (refused.Good().to("meta"), "a.weight is on meta", "module.cpu()"),
            (torch.nn.DataParallel(refused.Good()), "DataParallel around the module", "module.module"),
        ]:
            with self.subTest(problem=problem):
                self.refused(module, ROWS, problem, hint)

    def test_examples(self):
        for example, problem in [
            (ROWS[0], "does not fit forward: missing a required argument: 'y'"),
            ((*ROWS, 1), "does not fit forward: too many positional arguments"),
            ({"x": ROWS[0], "z": ROWS[1]}, "does not fit forward"),
            (3, "the example is int"),
            ((torch.randn(4, 7), ROWS[1]), "torch.export cannot trace the module"),
        ]:
            with self.subTest(problem=problem):
                self.refused(refused.Good(), example, problem)
        targets = IDS[1].clone()
        targets[0, 0] = -100
        self.refused(refused.Attention(), (IDS[0], targets), "the example has ignored targets")

    def test_eval_mode_is_trained_and_kept(self):
        module = refused.Good().eval()
        export(module, ROWS)
        self.assertFalse(any(one.training for one in module.modules()))

    def test_command(self):
        with tempfile.TemporaryDirectory() as folder:
            def run(what):
                return subprocess.run([sys.executable, "-m", "prun.export", what, "--out", f"{folder}/plan"], text=True,
                                      capture_output=True, cwd=folder, env={"PYTHONPATH": ":".join(sys.path)})

            path = pathlib.Path(folder, "mine.py")
            path.write_text("import refused, torch\n"
                            "def build():\n    return refused.Good(), (torch.randn(4, 8), torch.randn(4, 4))\n"
                            "def wrong():\n    return refused.NoLoss(), (torch.randn(4, 8), torch.randn(4, 4))\n"
                            "def nothing():\n    return 3\n")
            done = run("mine.py:build")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(pathlib.Path(folder, "plan.lua").exists())
            self.assertTrue(pathlib.Path(folder, "plan.weights/model.safetensors").exists())
            for what, text in [("mine.py:wrong", "the module returns no loss"), ("mine.py:nothing", "returns int"),
                               ("mine.py:missing", "mine.py has no missing"), ("other.py:build", "no file other.py")]:
                done = run(what)
                self.assertEqual(done.returncode, 2)
                self.assertIn(text, done.stderr)
                self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
