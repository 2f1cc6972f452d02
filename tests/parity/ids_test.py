#!/usr/bin/env python3
"""Ids that a plan computes are those that files hold: the losses are equal, on every mesh and device. Usage: ids_test.py PRUN
"""
import array
import json
import math
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
PLAN = pathlib.Path(__file__).resolve().parent / "ids.lua"
SAMPLES, TOKENS, VOCAB, IGNORED = 16, 8, 24, -100
MESHES = [{}, {"dp": 2, "micro": 2}, {"pp": 2, "micro": 4}, {"tp": 4}, {"pp": 2, "tp": 2, "dp": 2, "zero": 3, "micro": 2}]


def npy(shape, values):
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + array.array("i", values).tobytes()


def flat(rows):
    return [one for row in rows for one in row]


class Ids(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-ids-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        draw = random.Random(4)
        real = [[t < draw.randrange(1, TOKENS + 1) for t in range(TOKENS)] for _ in range(SAMPLES)]
        real = [[one or t == 0 for t, one in enumerate(row)] for row in real]  # padding within a text, too
        labels = [[draw.randrange(VOCAB) if draw.random() < 0.7 else IGNORED for _ in row] for row in real]
        positions = [[sum(row[:t + 1]) * row[t] for t in range(TOKENS)] for row in real]
        before = [[2, *[max(one, 0) for one in row[:-1]]] for row in labels]
        arrays = {
            "ids": [[draw.randrange(1, VOCAB) * one for one in row] for row in real], "labels": labels,
            "positions": positions, "before": before, "mask": [[int(one) for one in row] for row in real],
            "last": [[max(t for t in range(TOKENS) if row[t])] for row in real],
            "distances": [[j - i + TOKENS - 1 for i in range(TOKENS) for j in range(TOKENS)]] * SAMPLES,
        }
        for name, rows in arrays.items():
            (cls.folder / f"{name}.npy").write_bytes(npy([SAMPLES, len(rows[0])], flat(rows)))

    def losses(self, device="reference", **settings):
        ranks = math.prod(settings.get(axis, 1) for axis in ("pp", "dp", "tp"))
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={str(value).lower()}")]
        done = subprocess.run([PRUN, PLAN, "--nproc", str(ranks), "--metrics", "-", "-q", "--device", device, *sets],
                              capture_output=True, text=True, timeout=100, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return [row["loss"] for row in rows if "loss" in row]

    def test_computed_ids_are_those_of_files(self):
        first = self.losses(computed=False)
        self.assertEqual(len(set(first)), 3)
        for mesh in MESHES:
            with self.subTest(mesh=mesh):
                for one, other in zip(self.losses(**mesh), first, strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-12)

    def test_devices(self):
        first = self.losses(computed=False)
        for device, dtype, bound in (("cpu", "f32", 1e-6), ("cpu-queue", "f32", 1e-6), ("cpu", "bf16", 0.02)):
            with self.subTest(device=device, dtype=dtype):
                for one, other in zip(self.losses(device, dtype=dtype, pp=2, micro=2), first, strict=True):
                    self.assertLess(abs(one - other), bound * other)

    def test_proof(self):
        done = subprocess.run([PRUN, "check", PLAN, "--prove", "--nproc", "4", "--set", "dtype=f32", "--set", "pp=2",
                               "--set", "dp=2", "--set", "micro=2"], capture_output=True, text=True, cwd=self.folder)
        self.assertIn("proven: equals one rank", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
