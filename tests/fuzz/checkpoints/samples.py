"""Data files whose sample i is a power of two, and the results of uninterrupted runs on them.

The order of samples is not computed here: a run with batches of one sample and no checkpoint reports it.
"""
import json
import pathlib
import struct
import subprocess
import tempfile
import threading

PLAN = pathlib.Path(__file__).resolve().parent / "linear.lua"
WEIGHT = "layer0.linear.weight"
CONTENTS = {  # name -> values of the samples of x.npy
    "first": tuple(2.0**i for i in range(12)),
    "grown": tuple(2.0**i for i in range(14)),
    "shrunk": tuple(2.0**i for i in range(9)),
    "replaced": tuple(2.0**(11 - i) for i in range(12)),
}


def npy(values):
    """Returns the bytes of a .npy file, version 1.0, with a column of float32."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(values)},), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values)


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def rows_of(path):
    """Returns the complete lines of a metrics file; a killed job may leave an incomplete one."""
    rows = []
    for line in pathlib.Path(path).read_bytes().split(b"\n")[:-1] if pathlib.Path(path).exists() else []:
        row = json.loads(line)
        if "loss" in row:
            rows.append(row)
    return rows


class Reference:
    """Results of uninterrupted runs, each run once. Thread-safe."""

    def __init__(self, prun):
        self.prun, self.lock, self.orders, self.courses = prun, threading.Lock(), {}, {}

    def run(self, content, nproc, settings):
        with tempfile.TemporaryDirectory(prefix="prun-reference-") as folder:
            (pathlib.Path(folder) / "x.npy").write_bytes(npy(CONTENTS[content]))
            (pathlib.Path(folder) / "linear.lua").write_bytes(PLAN.read_bytes())
            sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
            subprocess.run([self.prun, "linear.lua", "--nproc", str(nproc), "--quiet", "--metrics", "m", *sets], cwd=folder, check=True,
                           capture_output=True, timeout=300)
            return [row["loss"] for row in rows_of(pathlib.Path(folder) / "m")]

    def order(self, content, order, seed, count):
        """Returns the first weight, and the positions in the data of at least the first `count` samples of a run."""
        key = (content, order, seed)
        with self.lock:
            first, places = self.orders.get(key, (0.0, []))
            if len(places) < count:
                losses = self.run(content, 1, {"batch": 1, "steps": max(2000, 2 * count), "order": order, "seed": seed, "lr": 0})
                values = CONTENTS[content]
                first = min(losses, key=abs) / min(values)  # with a learning rate of zero; the values are powers of two
                places = [values.index(loss / first) for loss in losses]
                self.orders[key] = (first, places)
            return first, places

    def losses(self, content, nproc, settings, steps):
        """Returns the losses of at least `steps` steps of an uninterrupted run."""
        key = (content, nproc, tuple(sorted(settings.items())))
        with self.lock:
            if len(self.courses.get(key, [])) < steps:
                self.courses[key] = self.run(content, nproc, {**settings, "steps": max(150, steps)})
            return self.courses[key]


def train(weight, momentum_state, lr, momentum, batches):
    """Yields the weight before each step, as the optimizer rounds it, the sum of the batch, and the state after the step."""
    for batch in batches:
        total = sum(batch)
        before = weight
        gradient = f32(total / len(batch))
        momentum_state = f32(momentum * momentum_state + gradient) if momentum else gradient
        weight = f32(weight - f32(lr * momentum_state))
        yield before, total, weight, momentum_state
