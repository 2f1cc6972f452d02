#!/usr/bin/env python3
"""A vision transformer of transformers: ten steps in f64 on several meshes against PyTorch, from the same weights.

Usage: vit_test.py PRUN VENV. VENV: see export_families_test.py.
"""
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import packages  # noqa: E402

packages.run_inside(__file__, sys.argv[2])
import numpy  # noqa: E402
import torch  # noqa: E402
from transformers import ViTConfig, ViTForImageClassification  # noqa: E402

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]
import reference  # noqa: E402
from prun.export import export  # noqa: E402

PRUN, STEPS, RATE = sys.argv[1], 10, 0.1
MESHES = [(1, []), (2, []), (2, ["tp=2"]), (2, ["pp=2", "micro=2"])]


class Vit(unittest.TestCase):
    def test_ten_steps(self):
        torch.manual_seed(0)
        module = ViTForImageClassification(ViTConfig(
            hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=2, image_size=16, patch_size=4,
            num_channels=3, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).double()
        batch = {"pixel_values": torch.randn(8, 3, 16, 16, dtype=torch.float64), "labels": torch.randint(0, 5, (8,))}
        with tempfile.TemporaryDirectory(prefix="prun-vit-") as place:
            folder = pathlib.Path(place)
            exported = export(module, batch)
            exported.save(folder / "plan")
            plan = folder / "plan.lua"
            text = plan.read_text()
            self.assertIn("prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }", text)
            self.assertLessEqual(text.count("\n"), 60, text)
            plan.write_text(text.replace("prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }",
                                         f"prun.sgd {{ lr = {RATE} }}"))
            numpy.save(folder / "x.npy", batch["pixel_values"].numpy())
            numpy.save(folder / "y.npy", batch["labels"].numpy().astype("int32"))
            losses, trained, _ = reference.train(module, batch, STEPS, lambda p: torch.optim.SGD(p, lr=RATE))
            for ranks, settings in MESHES:
                with self.subTest(ranks=ranks, settings=settings):
                    ours, tensors = reference.run(PRUN, plan, folder / "out", ranks, [
                        f"file={folder}/x.npy", f"targets={folder}/y.npy", *settings], ["--device", "reference"])
                    self.assertEqual(len(ours), STEPS)
                    self.assertLess(max(abs(a - b) / b for a, b in zip(ours, losses)), 1e-12)
                    exported.load_tensors(tensors)
                    for (name, one), other in zip(module.named_parameters(), trained.parameters()):
                        self.assertLess((one - other).abs().max().item(), 1e-12, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
