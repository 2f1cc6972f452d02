"""Runs of outputs.lua in a folder of their own, for the tests here. The tests' first argument is prun."""
import ast
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
PLAN = pathlib.Path(__file__).resolve().parent / "outputs.lua"
MESHES = {
    "dp": (2, {}),
    "zero3": (2, {"zero3": "true", "micro": 2}),
    "tp": (2, {"tp": 2}),
    "pp": (2, {"pp": 2, "micro": 2}),
    "tp_zero3": (4, {"tp": 2, "zero3": "true"}),
}


def array(path):
    """Returns the shape and the elements of a .npy file."""
    data = path.read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    (size,) = struct.unpack("<H", data[8:10])
    header = ast.literal_eval(data[10:10 + size].decode())
    count = math.prod(header["shape"])
    code = {"<f8": "d", "<f4": "f"}[header["descr"]]
    return header["shape"], struct.unpack(f"<{count}{code}", data[10 + size:])


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.here = pathlib.Path(tempfile.mkdtemp(prefix="prun-outputs-"))
        cls.addClassCleanup(shutil.rmtree, cls.here)
        text = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(1100))
        (cls.here / "text.txt").write_text(text)

    @classmethod
    def prun(cls, *words, code=0, **settings):
        device = ["--device", "reference"] if settings.get("dtype", "f64") == "f64" else []
        settings = {"data": cls.here / "text.txt", **settings}
        sets = [*device, *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]
        done = subprocess.run([PRUN, *map(str, words), *sets], cwd=cls.here, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    @classmethod
    def train(cls, folder, *options, **settings):
        """Trains into a folder; returns it and the evaluations by step."""
        metrics = cls.here / f"{folder}.jsonl"
        done = cls.prun(PLAN, "--checkpoint", folder, "--metrics", metrics, *options, **settings)
        cls.said = done.stdout + done.stderr
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return cls.here / folder, {row["step"]: row["eval_loss"] for row in rows if "eval_loss" in row}

    def eval(self, weights, *options, **settings):
        return json.loads(self.prun("eval", PLAN, "--from", weights, "--json", *options, **settings).stdout)

    def losses(self, folder):
        """Returns the losses of the run that `train` made, in the order of its steps."""
        rows = [json.loads(line) for line in (self.here / f"{folder}.jsonl").read_text().splitlines()]
        return [row["loss"] for row in rows if "loss" in row]
