#!/usr/bin/env python3
"""prun.fit on the batches of a DataLoader has PyTorch's losses. Needs torch, in a virtual environment that pip fills
once. Usage: feed_torch_test.py PRUN VENV
"""
import copy
import os
import pathlib
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
from prun.feed import Feeder  # noqa: E402
from prun.feed import _arrays as feed_arrays  # noqa: E402
from small_gpt import GPT  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

TEXT = numpy.frombuffer((TOP / "plans/text/sample.txt").read_bytes(), "u1")
CONTEXT, STEPS, BATCH, LR = 32, 100, 8, 0.05


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 2)

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.last(torch.nn.functional.gelu(self.first(x))), y)


class Shuffled(DataLoader):
    """A DataLoader with the same order in each epoch of each process."""

    def __init__(self, dataset):
        super().__init__(dataset, batch_size=BATCH, shuffle=True, drop_last=True, generator=torch.Generator())

    def __iter__(self):
        self.generator.manual_seed(5)
        return super().__iter__()


def loss_of(result):
    return result[1] if isinstance(result, tuple) else result


class FeedTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        torch.manual_seed(1)

    def windows(self):
        ids = torch.from_numpy(TEXT[: 60 * CONTEXT + 1].astype("i8"))
        return TensorDataset(ids[:-1].view(60, CONTEXT), ids[1:].view(60, CONTEXT))

    def compare(self, module, dataset, bound, **options):
        mine = copy.deepcopy(module)
        optimizer = torch.optim.SGD(mine.parameters(), lr=LR)
        losses: list[float] = []
        while len(losses) < STEPS:
            for batch in Shuffled(dataset):
                optimizer.zero_grad()
                loss = loss_of(mine(*batch))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        rows = prun.fit(module, Shuffled(dataset), steps=STEPS, batch=BATCH, optimizer="sgd", lr=LR, **options)
        self.assertEqual(len(rows), STEPS)
        for row, loss in zip(rows, losses):
            self.assertLess(abs(row["loss"] - loss), bound, f"step {row['step']}")
        self.assertLess(losses[-1], losses[0])

    def test_a_hundred_losses_in_f64(self):
        x = torch.randn(60, 6, dtype=torch.float64)
        self.compare(Regression().double(), TensorDataset(x, x[:, :2]), 1e-10, device="reference")
        self.compare(GPT().double().eval(), self.windows(), 1e-10, device="reference")

    def test_a_hundred_losses_in_f32(self):
        x = torch.randn(60, 6)
        self.compare(Regression(), TensorDataset(x, x[:, :2]), 1e-4)
        self.compare(GPT().eval(), self.windows(), 1e-4, mesh="dp=2")

    def test_tensors_and_arrays_of_16_bits_and_bool(self):
        x = torch.randn(8, 6)
        batch = {"b": x.bfloat16(), "h": x.half().t().contiguous().t(), "m": x > 0, "n": x.half().numpy()}
        feeder = Feeder([batch], f"halves-{os.getpid()}")
        self.addCleanup(feeder.ring.close)
        self.assertEqual({name: each[:2] for name, each in feeder.ring.inputs.items()},
                         {"b": ("bf16", (8, 6)), "h": ("f16", (8, 6)), "m": ("u8", (8, 6)), "n": ("f16", (8, 6))})
        feeder.ring.write(0, feed_arrays(batch, None), "")
        for name, wanted in (("b", x.bfloat16().view(torch.int16).numpy()), ("h", x.half().numpy()), ("m", (x > 0).numpy()),
                             ("n", x.half().numpy())):
            at = 16384 + feeder.ring.inputs[name][2]
            self.assertEqual(feeder.ring.map[at : at + wanted.nbytes], wanted.tobytes(), name)

    def test_an_exception_of_the_loader_is_raised(self):
        def broken():
            yield torch.randn(8, 6), torch.randn(8, 2)
            raise ValueError("no such picture")

        with self.assertRaisesRegex((ValueError, prun.FeedFailed), "no such picture"):
            prun.fit(Regression(), broken(), steps=5, batch=8)
        with self.assertRaisesRegex(prun.UsageError, "batches have 8 samples, and batch=4"):
            prun.fit(Regression(), broken(), steps=5, batch=4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
