"""The data of inputs.lua: tokens, labels and weights of 20 samples, as arrays in files and as batches."""
import array
import json
import math
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PLAN = HERE / "inputs.lua"
SAMPLES, CONTEXT, VOCAB, IGNORED = 20, 8, 24, -100
MESHES = [{}, {"micro": 2}, {"dp": 2}, {"tp": 2}, {"pp": 2, "micro": 2}, {"pp": 2, "dp": 2, "micro": 2},
          {"cp": 2}, {"cp": 2, "dp": 2, "micro": 2}]


def npy(descr, shape, data):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def safetensors(dtype, shape, data):
    """Returns a file with one tensor."""
    tensor = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, len(data)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, "frames": tensor}).encode()
    return len(text).to_bytes(8, "little") + text + data


def bf16(numbers):
    """Returns numbers that bf16 represents, as 16-bit integers."""
    return [word >> 16 for word in array.array("I", array.array("f", numbers).tobytes())]


def shaped(kind, values, *shape):
    """Returns an array with a shape, without numpy."""
    return memoryview(array.array(kind, values)).cast("B").cast(kind, shape)


class Inputs(unittest.TestCase):
    prun_path = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-inputs-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        draw = random.Random(7)
        cls.tokens = [[draw.randrange(VOCAB) for _ in range(CONTEXT)] for _ in range(SAMPLES)]
        cls.labels = [[draw.randrange(VOCAB) if t < 1 + i % CONTEXT else IGNORED for t in range(CONTEXT)]
                      for i in range(SAMPLES)]
        cls.weights = [[draw.randrange(1, 8) / 4 for _ in range(CONTEXT)] for _ in range(SAMPLES)]
        cls.write("tokens_0", "<i8", "q", cls.tokens[:12])
        cls.write("tokens_1", "<i8", "q", cls.tokens[12:])
        cls.write("labels", "<i8", "q", cls.labels)
        cls.write("weights_0", "<f4", "f", cls.weights[:5])
        cls.write("weights_1", "<f4", "f", cls.weights[5:])
        cls.frames = [[draw.randrange(-8, 9) / 8 for _ in range(CONTEXT * 3)] for _ in range(SAMPLES)]
        cls.side = [[draw.uniform(-1, 1) for _ in range(CONTEXT)] for _ in range(SAMPLES)]
        cls.write("frames", "<f4", "f", cls.frames, CONTEXT, 3)
        cls.write("side", "<f4", "f", cls.side)

    @classmethod
    def write(cls, name, descr, kind, rows, *dims):
        data = array.array(kind, [number for row in rows for number in row]).tobytes()
        (cls.folder / f"{name}.npy").write_bytes(npy(descr, [len(rows), *(dims or [len(rows[0])])], data))

    @classmethod
    def batch(cls, samples, more=False):
        """Returns a batch of the feed with these samples."""
        def rows(kind, values, *dims):
            return shaped(kind, [number for i in samples for number in values[i]], len(samples), CONTEXT, *dims)

        batch = {"tokens": rows("q", cls.tokens), "labels": rows("q", cls.labels), "weights": rows("f", cls.weights)}
        return {**batch, "frames": rows("f", cls.frames, 3), "side": rows("f", cls.side)} if more else batch

    def words(self, *words, **settings):
        ranks = math.prod(settings.get(axis, 1) for axis in ("pp", "dp", "cp", "tp"))
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [self.prun_path, PLAN, "--nproc", str(ranks), *map(str, words), *sets]

    def run_prun(self, words, code=0):
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def losses(self, *words, code=0, **settings):
        """Returns the loss of each step, in f64."""
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        self.run_prun(self.words("--metrics", metrics, "--device", "reference", *words, dtype="f64", **settings), code)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [row["loss"] for row in rows if "loss" in row]

    def assert_close(self, ours, theirs, bound=1e-12):
        self.assertEqual(len(ours), len(theirs))
        for one, other in zip(ours, theirs):
            self.assertLess(abs(one - other), bound, f"{ours}\n{theirs}")
