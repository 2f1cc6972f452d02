#!/usr/bin/env python3
"""Trains each family that prun.export supports in PyTorch and in prun, and compares losses and weights.

Usage: export_families_test.py PRUN VENV [FAMILY ..]. VENV: a virtual environment with PyTorch, made if it is missing;
PRUN_HF_PYTHON names another Python.
"""
import copy
import pathlib
import shutil
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
import reference  # noqa: E402
from prun.export import export  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

PRUN = sys.argv[1]
ONLY = [one for one in sys.argv[3:] if not one.startswith("-")] or list(families.FAMILIES)
BATCH, STEPS = 8, 10
SMALL, RARE = 3e-6, 0.05
MESHES = [(1, []), (2, []), (8, ["pp=2", "tp=2", "micro=2"])]


def distances(module, trained, first=None):
    """Returns the greatest difference of each parameter, the greatest first. `first`: AdamW's first gradients.

    AdamW's first steps divide a gradient by its own size, so that of a gradient of almost zero, such as a key bias's,
    they amplify the rounding error. Biases of keys and elements whose first gradient is below SMALL are omitted; at most
    a part of RARE may be small without being zero.
    """
    result, omitted, all_of_them = [], 0, 0
    if first is None:
        return sorted((((ours - theirs).abs().max().item(), name)
                       for (name, ours), theirs in zip(module.named_parameters(), trained.parameters())), reverse=True)
    for (name, ours), theirs, gradient in zip(module.named_parameters(), trained.parameters(), first):
        counted = gradient.abs() >= SMALL
        if name.endswith("k_proj.bias"):
            continue
        if name.endswith("c_attn.bias"):
            counted.view(3, -1)[1] = False
        else:
            omitted, all_of_them = omitted + (~counted & (gradient != 0)).sum().item(), all_of_them + gradient.numel()
        result.append((((ours - theirs).abs() * counted).max().item(), name))
    if omitted > RARE * all_of_them:
        raise AssertionError(f"{omitted} of {all_of_them} gradients are below {SMALL}: nothing is compared")
    return sorted(result, reverse=True)


class Families(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="prun-export-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        torch.manual_seed(0)
        size = families.CONTEXT
        # The file holds one batch, so that each step of prun reads the samples of PyTorch's batch in some order.
        tokens = torch.randint(2, families.VOCAB, (BATCH * size + 1,))
        tokens.numpy().astype("<u2").tofile(self.folder / "tokens.bin")
        self.windows = torch.stack([tokens[i * size:(i + 1) * size + 1] for i in range(BATCH)])
        self.settings = [f"file={self.folder / 'tokens.bin'}"]

    def export(self, module, family):
        exported = export(module, families.batch_of(family, self.windows), name=family)
        exported.save(self.folder / "plan")
        self.assertLessEqual(exported.plan.count("\n"), 60, exported.plan)
        return exported

    def test_adamw(self):
        for family in ONLY:
            torch.manual_seed(0)
            module = families.FAMILIES[family]()
            batch = families.batch_of(family, self.windows)
            exported = self.export(module, family)
            losses, trained, first = reference.train(module, batch, STEPS, lambda p: torch.optim.AdamW(p, lr=1e-3))
            for nproc, settings in MESHES:
                if family.endswith("balanced"):  # it is a loss of each microbatch
                    settings = [one for one in settings if not one.startswith("micro")]
                with self.subTest(family=family, nproc=nproc):
                    ours, tensors = reference.run(PRUN, self.folder / "plan.lua", self.folder / "out", nproc,
                                                  self.settings + settings, ["--prove"])
                    self.assertEqual((len(ours), len(losses)), (STEPS, STEPS))
                    self.assertLess(abs(ours[0] - losses[0]), 1e-6 * losses[0])
                    worst = max(abs(a - b) for a, b in zip(ours, losses))
                    self.assertLess(worst, 1e-5)
                    exported.load_tensors(tensors)
                    far = distances(module, trained, first)
                    start = abs(ours[0] - losses[0]) / losses[0]
                    print(f"{family} on {nproc}: first loss within {start:.1e}, all within {worst:.1e}, "
                          f"weights within {far[0][0]:.1e} ({far[0][1]})", flush=True)
                    self.assertLess(far[0][0], 1e-5)

    def test_state_dict_of_a_checkpoint(self):
        """prun ckpt export writes the module's names, so that load_state_dict takes the file as it is."""
        for family in ONLY:
            with self.subTest(family=family):
                torch.manual_seed(0)
                module = families.FAMILIES[family]()
                exported = self.export(module, family)
                _, tensors = reference.run(PRUN, self.folder / "plan.lua", self.folder / "out", 2, self.settings)
                trained = copy.deepcopy(module)
                exported.load_tensors(tensors)
                shutil.rmtree(self.folder / "state", ignore_errors=True)
                subprocess.run([PRUN, "ckpt", "export", self.folder / "out", "--format", "torch", "--description",
                                self.folder / "plan.weights", "--out", self.folder / "state"], check=True, capture_output=True)
                trained.load_state_dict(load_file(self.folder / "state/model.safetensors"))  # strict
                first = families.FAMILIES[family]().state_dict()
                for name, value in module.state_dict().items():
                    self.assertTrue(torch.equal(trained.state_dict()[name], value), name)
                self.assertFalse(any(torch.equal(first[name], value) for name, value in module.named_parameters() if value.dim() > 1))

    def test_sgd_in_f64(self):
        for family in ONLY:
            with self.subTest(family=family):
                torch.manual_seed(0)
                module = families.FAMILIES[family]().double()
                reference.exact_angles(module)
                batch = families.batch_of(family, self.windows)
                exported = self.export(module, family)
                plan = self.folder / "plan.lua"
                text = plan.read_text()
                self.assertIn("prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }", text)
                plan.write_text(text.replace("prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }",
                                             "prun.sgd { lr = 0.1 }"))
                with reference.Wide():
                    losses, trained, _ = reference.train(module, batch, STEPS, lambda p: torch.optim.SGD(p, lr=0.1))
                self.assertGreater(distances(module, trained)[0][0], 1e-3)
                ours, tensors = reference.run(PRUN, plan, self.folder / "out", 2, self.settings,
                                              ["--device", "reference"])
                self.assertEqual((len(ours), len(losses)), (STEPS, STEPS))
                exported.load_tensors(tensors)
                far, worst = distances(module, trained)[0], max(abs(a - b) for a, b in zip(ours, losses))
                print(f"{family} in f64: losses within {worst:.1e}, weights within {far[0]:.1e} ({far[1]})", flush=True)
                self.assertLess(far[0], 1e-10)
                self.assertLess(worst, 1e-10)

    def test_lines_of_a_deep_model(self):
        module = families.of_transformers("SmolLM3", **{**families.ROTARY, "num_hidden_layers": 36, "hidden_size": 16})
        exported = self.export(module, "SmolLM3")
        self.assertIn("for i = 0, 35 do", exported.plan)
        self.assertIn("if i % 4 == 3 then", exported.plan)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
