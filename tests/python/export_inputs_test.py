#!/usr/bin/env python3
"""Trains each architecture with inputs by name in PyTorch and in prun, and compares losses and weights.

Usage: export_inputs_test.py PRUN VENV [ARCHITECTURE ..]
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

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]
import inputs_by_name  # noqa: E402
import reference  # noqa: E402
from prun.export import export  # noqa: E402

PRUN = sys.argv[1]
ONLY = [one for one in sys.argv[3:] if not one.startswith("-")] or list(inputs_by_name.ARCHITECTURES)
STEPS, SMALL = 10, 3e-6
MESHES = [(1, []), (2, []), (8, ["pp=2", "tp=2", "micro=2"])]


class Inputs(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="prun-inputs-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)

    def test_trains_as_pytorch(self):
        for name in ONLY:
            make, batch = inputs_by_name.ARCHITECTURES[name]
            torch.manual_seed(0)
            module, batch = make(), batch()
            exported = export(module, batch, name=name)
            exported.save(self.folder / "plan")
            self.assertLessEqual(exported.plan.count("\n"), 80, exported.plan)
            settings = [f"batch={inputs_by_name.BATCH}"]
            for key, value in batch.items():
                if f" {key} = " in exported.plan:
                    numpy.save(self.folder / f"{key}.npy", value.int().numpy())
                    settings.append(f"{key}={self.folder / key}.npy")
            losses, trained, first = reference.train(module, batch, STEPS, lambda p: torch.optim.AdamW(
                [one for one in p if one.requires_grad], lr=1e-3))
            for nproc, more in MESHES:
                with self.subTest(architecture=name, nproc=nproc):
                    ours, tensors = reference.run(PRUN, self.folder / "plan.lua", self.folder / "out", nproc,
                                                  settings + more, ["--prove"])
                    self.assertEqual(len(ours), STEPS)
                    worst = max(abs(a - b) for a, b in zip(ours, losses))
                    exported.load_tensors(tensors)
                    far = max(self.distance(one, two, gradient) for one, two, gradient in
                              zip(module.parameters(), trained.parameters(), first))
                    print(f"{name} on {nproc}: losses within {worst:.1e}, weights within {far:.1e}", flush=True)
                    self.assertLess(worst, 1e-5)
                    self.assertLess(far, 2e-5)
                    self.assertGreater(losses[0] - losses[-1], 0.01)

    @staticmethod
    def distance(ours, theirs, gradient):
        """Returns the largest difference of the elements whose first gradient is no rounding error."""
        counted = torch.ones_like(ours, dtype=torch.bool) if gradient is None else gradient.abs() >= SMALL
        return ((ours - theirs).abs() * counted).max().item()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
