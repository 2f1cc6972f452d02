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
import families  # noqa: E402
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
    "Summed": ("sum", "a sum instead of a mean", ".mean()"),
    "SummedLoss": ("mse_loss", "a sum instead of a mean", 'reduction="mean"'),
    "OtherLoss": ("dot", "prun has no such loss", "F.cross_entropy, F.mse_loss, a mean of numbers"),
    "Broadcasts": ("mse_loss", "shapes [4, 1] and [4, 4], which broadcast", "the result's shape"),
    "Soft": ("cross_entropy_loss", "targets that are probabilities", "the class's number"),
    "NoLoss": ("", "the module returns no loss", "return F.cross_entropy"),
    "Later": ("", "tokens whose results depend on later ones", "use causal attention"),
    "TiedThrice": ("linear", "weight", "logits' layer"),
    "Statistics": ("instance_norm", "an instance norm with running statistics", "track_running_stats=False"),
    "Counter": ("add_", "forward changes a buffer, b_count", "between steps"),
    "Modes": ("mul", "differs between train and eval mode", "a plan evaluates"),
    "NoGrad": ("", "a region without gradients", "outside the module"),
    "Autocast": ("", "a region without gradients or with another precision", "remove the region"),
    "Random": ("randn_like", "prun has no function for it", "only nn.Dropout is random"),
    "Broadcast": ("linear", "the weight b.weight is used twice", "weights of their own"),
    "Outer": ("unsqueeze", "a reshape from [4, 8] to [1, 4, 8] that mixes samples", "in the first dim"),
    "Twins": ("linear", "the weight a.weight is used twice", "weights of its own"),
    "OwnDerivative": ("", "the autograd function Straight has a derivative of its own", "with PyTorch's functions"),
    "TensorHook": ("register_hook", "a hook on a tensor's gradient", "remove the hook"),
    "Data": ("", "a tensor without its history, such as x.data", "use x itself"),
    "Experts": ("topk", "a mixture of experts", "nn.moe"),
    "Picked": ("slice", "samples that are picked or joined", "in the first dim"),
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
                self.refused(module, IDS if name in ("Later", "TiedThrice") else ROWS, problem, hint, op, line_of(module))

    def test_the_good_one(self):
        self.assertIn("nn.relu", export(refused.Good(), ROWS).plan)

    def test_attention(self):
        self.assertIn("nn.attention", export(refused.Attention(), IDS).plan)
        line = line_of(refused.Attention())
        for module, problem, hint in [
            (refused.Attention(is_causal=False, attn_mask=torch.ones(6, 6).triu().bool()),
             "neither causal, a window nor empty", ""),
            (refused.Attention(lambda q: q + 1), "changed between their linear layer and the attention", ""),
        ]:
            with self.subTest(problem=problem):
                self.refused(module, IDS, problem, hint, line=line)
        for change, text in [(lambda q: torch.nn.functional.rms_norm(q, (8,)), "nn.rmsnorm("),
                             (lambda q: q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6), "nn.rmsnorm("),
                             (refused.turned(8, power=0.8), 'scaling = "longrope"')]:
            self.assertIn(text, export(refused.Attention(change), IDS).plan)
        window = refused.Attention(is_causal=False, attn_mask=torch.ones(6, 6).tril().triu(-2).bool())
        self.assertIn("window = 3", export(window, IDS).plan)
        self.assertIn("nn.attention { q = ", export(refused.NoProjection(), IDS).plan)

    def test_attention_by_parts(self):
        self.assertIn("causal = false", export(refused.ByParts(), IDS).plan)
        bias = torch.nn.Parameter(torch.zeros(2, 6, 6))
        for module, problem, hint in [
            (refused.ByParts(dim=-2), "softmax over dim -2", "softmax(scores, dim=-1)"),
            (refused.ByParts(lambda s: s + s ** 3), "changed other than by a factor", "prun has these"),
            (refused.ByParts(lambda s: torch.nn.functional.dropout(s, 0.1)), "not q @ k.T with a", "F.scaled_dot"),
        ]:
            with self.subTest(problem=problem):
                self.refused(module, IDS, problem, hint)
        module = refused.ByParts()
        module.bias, module.change = bias, lambda s: s + module.bias
        self.assertIn("bias = nn.parameter(", export(module, IDS).plan)
        module.change = lambda s: s * module.bias
        self.refused(module, IDS, "in another way than by a bias", "a bias and a mask of keys")

    def test_tokens(self):
        def positions(module, x):
            return x + module.places(torch.arange(6))

        self.assertIn("position.weight", export(refused.Tokens(positions), IDS).plan)
        for change, problem, hint in [
            (lambda m, x: x + torch.randn(6, 16), "random numbers", ""),
            (lambda m, x: x.transpose(0, 1), "logits of the tokens in another order", "batch_first=True"),
        ]:
            with self.subTest(problem=problem):
                self.refused(refused.Tokens(change), IDS, problem, hint)

    def test_targets(self):
        module = refused.Tokens(lambda m, x: x)
        self.refused(module, (IDS[0], IDS[0].clone()), "the example's targets are its ids", "shifted by one")
        self.assertIn("The example's targets are not its next tokens", export(module, IDS).plan)
        nexts = torch.cat([IDS[0][:, 1:], IDS[1][:, :1]], 1)
        same = torch.zeros_like(nexts)
        for example in (IDS[0], nexts), (same, same):
            self.assertEqual(export(module, example).notes, [])
        module = refused.Tokens(lambda m, x: m.inner(x)[0])
        module.inner = torch.nn.LSTM(16, 16, batch_first=True)
        self.refused(module, IDS, "prun has no function for it", "no recurrent layers", "lstm")
        encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 8, 0.0, batch_first=True), 1)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(6)
        module = refused.Tokens(lambda m, x: m.inner(x, mask=mask))
        module.inner = encoder
        self.refused(module, IDS, "a mask of nn.TransformerEncoder", "is_causal=True")
        module.change = lambda m, x: m.inner(x, mask=mask, is_causal=True)
        self.assertIn("nn.attention(", export(module, IDS).plan)
        half = refused.Tokens(lambda m, x: x)
        half.forward = lambda ids, targets: refused.Tokens.forward(half, ids[:, :-1], ids[:, :-1])
        self.refused(half, IDS, "targets that are neither one for each token nor", "the next token at each position")
        mixed = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        module = refused.Tokens(lambda m, x: m.mixed(x, x, x, need_weights=False)[0], shift=True)
        module.mixed = mixed
        self.refused(module, (IDS[0], IDS[0]), "attention to later tokens, which are the targets", "causal attention")

    def test_of_transformers(self):
        windows = torch.randint(2, families.VOCAB, (2, 17))
        for name, options, problem, hint in [
            ("Mixtral", dict(num_local_experts=4, hidden_act="gelu"), "a mixture of experts", "nn.moe"),
            ("Mixtral", dict(num_local_experts=4, router_jitter_noise=0.1), "prun has no function", "only nn.Dropout is random"),
            ("Qwen2Moe", dict(num_experts=4, moe_intermediate_size=64, shared_expert_intermediate_size=64),
             "a mixture of experts", "SwiGLU experts as those of Mixtral"),
            ("Mixtral", dict(num_local_experts=4, experts_implementation="eager"), "a mixture of experts", "grouped_mm"),
        ]:
            with self.subTest(model=name, problem=problem):
                module = families.of_transformers(name, **{**families.ROTARY, **options})
                self.refused(module, {"input_ids": windows, "labels": windows}, problem, hint)

    def test_modules_as_they_are_given(self):
        hooked, frozen, mixed = refused.Good(), refused.Good(), refused.Good()
        hooked.a.register_forward_hook(lambda *_: None)
        frozen.requires_grad_(False)
        mixed.dropout.eval()
        watched, counted = refused.Good(), refused.Good()
        watched.a.weight.register_hook(lambda gradient: gradient)
        counted.a.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        normed = refused.Good()
        torch.nn.utils.parametrizations.weight_norm(normed.a)
        for module, problem, hint in [
            (hooked, "a has forward hooks", "remove them"),
            (watched, "a.weight has hooks on its gradient", "remove them"),
            (counted, "a.weight has hooks on its gradient", "remove them"),
            (frozen, "all parameters are frozen", "nothing to train"),
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
            path.with_name("plan.lua").unlink()
            path.with_name("plan.lua").mkdir()
            done = run("mine.py:build")
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr, f"{folder}/plan.lua cannot be written: Is a directory\n")
            for what, text in [("mine.py:wrong", "the module returns no loss"), ("mine.py:nothing", "returns int"),
                               ("mine.py:missing", "mine.py has no missing"), ("other.py:build", "no file other.py")]:
                done = run(what)
                self.assertEqual(done.returncode, 2)
                self.assertIn(text, done.stderr)
                self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
