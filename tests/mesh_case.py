"""A test case of a plan on several meshes: its arrays, its runs and their losses. Standard library only.

A subclass names its PLAN and writes arrays to `folder`, where the runs begin. The first argument of the test is prun.
"""
import array
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

AXES = ("pp", "dp", "cp", "tp")
KINDS = {"<i4": "i", "<i8": "q", "<f4": "f", "<f8": "d"}


def npy(descr, shape, values):
    """Returns the bytes of a .npy file, version 1.0."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    data = array.array(KINDS[descr], values).tobytes()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def ranks_of(settings):
    return math.prod(settings.get(axis, 1) for axis in AXES)


class MeshCase(unittest.TestCase):
    PLAN: pathlib.Path
    EXACT = ("--device", "reference")  # options of a run without others

    @classmethod
    def setUpClass(cls):
        cls.prun_path = str(pathlib.Path(sys.argv[1]).resolve())
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    @classmethod
    def write(cls, name, shape, values, descr="<i4"):
        (cls.folder / f"{name}.npy").write_bytes(npy(descr, shape, values))

    def prun(self, *words, code=0, **settings):
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={str(value).lower()}")]
        done = subprocess.run([self.prun_path, *map(str, words), *sets], capture_output=True, text=True, timeout=100,
                              cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def rows(self, *options, **settings):
        """Returns the metrics of a run on the mesh of the settings."""
        metrics = self.folder / "metrics"
        metrics.unlink(missing_ok=True)
        self.prun(self.PLAN, "--nproc", ranks_of(settings), "--metrics", metrics, *(options or self.EXACT), **settings)
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def losses(self, *options, key="loss", **settings):
        return [row[key] for row in self.rows(*options, **settings) if key in row]

    def close(self, ours, theirs, bound):
        for one, other in zip(ours, theirs, strict=True):
            self.assertLess(abs(one - other), bound * abs(other))

    def same_on(self, meshes, **settings):
        """Checks that losses on each mesh are those of one rank; later steps compare the gradients, too."""
        one = self.losses(**settings)
        for mesh in meshes:
            with self.subTest(mesh=mesh, **settings):
                self.close(self.losses(**{**settings, **mesh}), one, 1e-12)
        return one

    def proven(self, **settings):
        done = self.prun("check", self.PLAN, "--prove", "--nproc", ranks_of(settings), **{"dtype": "f32", **settings})
        self.assertRegex(done.stdout, r"(?m)^proven\b.*: equals one rank to")
