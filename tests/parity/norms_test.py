#!/usr/bin/env python3
"""Norms of channels and buffers (norms.lua): `prun check` proves each mesh equal to one rank, and losses, weights and
buffers of runs equal one rank's to 1e-12 in f64; gradients are those of finite differences; runs resume.

Every microbatch has statistics of its own, so that one rank runs with as many. Usage: norms_test.py PRUN
"""
import json
import math
import pathlib
import re
import struct
import sys
import tempfile
import unittest

PRUN = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program_text import check, programs, run, steps  # noqa: E402

PLAN = "tests/parity/norms.lua"
MESHES = {"dp=2": "ddp dp", "dp=4": "zero3 dp", "dp=3": "zero1 dp", "dp=2 tp=2": "zero2 dp,tensor_parallel tp",
          "pp=2": "pipeline pp", "pp=2 dp=2": "pipeline pp,ddp dp", "pp=4": "pipeline pp schedule=zb_h1",
          "pp=2 dp=4": "pipeline pp schedule=interleaved,zero1 dp", "dp=2 ep=2": "zero3 dp,ddp ep"}
BATCH = 48


def ranks_of(mesh):
    return math.prod(int(size) for size in re.findall(r"=(\d+)", mesh))


def places_of(offset, shape, whole):
    """Returns the place in the whole tensor of each element of a piece, in order."""
    places = [0]
    for first, size, extent in zip(offset, shape, whole):
        places = [place * extent + first + i for place in places for i in range(size)]
    return places


def tensors_of(folder):
    """Returns the f64 tensors of a checkpoint by name, as lists of numbers."""
    pieces = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        offsets = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            numbers = struct.unpack(f"<{(end - begin) // 8}d", data[8 + size + begin:8 + size + end])
            pieces.setdefault(name, []).append((offsets[name]["saved_offsets"], entry["shape"], numbers))
    tensors = {}
    for name, parts in pieces.items():
        whole = [max(offset[d] + shape[d] for offset, shape, _ in parts) for d in range(len(parts[0][1]))]
        values = tensors[name] = [None] * math.prod(whole)
        for offset, shape, numbers in parts:
            for place, number in zip(places_of(offset, shape, whole), numbers, strict=True):
                values[place] = number
    return tensors


class Norms(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="prun-norms-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)

    def trained(self, mesh, strategies, *options, name="out", **settings):
        """Returns the rows of a run and the tensors of its last checkpoint."""
        out = self.folder / name
        rows = steps(PRUN, PLAN, ranks_of(mesh), "--device", "reference", "--checkpoint", out, *options,
                     mesh=mesh, list=strategies, batch=BATCH, **settings)
        return rows, tensors_of(max(out.glob("step_*")))

    def equal(self, ours, theirs, where, bound=1e-12):
        (rows, tensors), (right_rows, right) = ours, theirs
        for row, other in zip(rows, right_rows, strict=True):
            for key in ("loss", "eval_loss"):
                if key in other:
                    self.assertAlmostEqual(row[key], other[key], delta=bound * max(1, abs(other[key])), msg=f"{key} {where}")
        self.assertEqual(sorted(tensors), sorted(right), where)
        for name, values in right.items():
            for a, b in zip(tensors[name], values, strict=True):
                self.assertAlmostEqual(a, b, delta=bound * max(1, abs(b)), msg=f"{name} {where}")

    def proven(self, mesh, strategies, **settings):
        done = run(PRUN, "check", PLAN, "--prove", "--nproc", ranks_of(mesh), mesh=mesh, list=strategies, batch=BATCH,
                   **{"dtype": "f32", **settings})
        self.assertEqual(done.returncode, 0, f"{mesh}\n{done.stderr}")
        self.assertRegex(done.stdout, r"(?m)^proven\b.*: equals one rank to", mesh)

    def test_every_mesh_is_proven(self):
        for norm in ("batch", "group", "own"):
            for mesh, strategies in MESHES.items():
                with self.subTest(norm=norm, mesh=mesh):
                    self.proven(mesh, strategies, norm=norm, micro=4 if "pp" in mesh else 1)

    def test_every_mesh_equals_one_rank(self):
        for norm, micro in (("batch", 1), ("batch", 4), ("flat", 12), ("own", 2)):  # flat: 4 ranks have a sample each
            # A norm takes away the bias before it, whose gradient is rounding: AdamW would magnify it.
            settings = dict(norm=norm, micro=micro, optimizer="sgd" if norm == "flat" else "adamw")
            one = self.trained("dp=1", "ddp dp", name=f"{norm}{micro}", **settings)
            for mesh, strategies in MESHES.items():
                if "pp=" in mesh and micro < 4 and mesh != "pp=2" or norm == "flat" and mesh == "dp=3":
                    continue
                with self.subTest(norm=norm, micro=micro, mesh=mesh):
                    again = "layer" if "zero" in strategies else ""
                    self.equal(self.trained(mesh, strategies, "--overwrite", again=again, **settings), one, mesh)

    def test_microbatches_have_statistics_of_their_own(self):
        one, four = (self.trained("dp=1", "ddp dp", name=f"m{micro}", micro=micro)[1] for micro in (1, 4))
        self.assertEqual(one["layer0.norm.num_batches_tracked"], [3])
        self.assertEqual(four["layer0.norm.num_batches_tracked"], [12])
        self.assertNotAlmostEqual(one["layer0.norm.running_var"][0], four["layer0.norm.running_var"][0], delta=1e-6)
        cumulative = self.trained("dp=2", "ddp dp", name="c", cumulative=True)[1]
        self.assertNotAlmostEqual(one["layer0.norm.running_var"][0], cumulative["layer0.norm.running_var"][0], delta=1e-6)

    def test_norms_on_cpus_and_in_bf16(self):
        for norm in ("group", "instance", "batch"):
            rows = {dtype: steps(PRUN, PLAN, 2, *["--device", "reference"] * (dtype == "f64"), mesh="dp=2",
                                 list="zero2 dp", norm=norm, batch=BATCH, dtype=dtype, optimizer="sgd")
                    for dtype in ("f64", "f32", "bf16")}
            for dtype, bound in (("f32", 1e-4), ("bf16", 5e-2)):
                for row, right in zip(rows[dtype], rows["f64"], strict=True):
                    self.assertAlmostEqual(row["loss"], right["loss"], delta=bound * right["loss"], msg=f"{norm} {dtype}")

    def test_a_resumed_run_equals_one_that_was_not_stopped(self):
        settings = dict(steps=6, norm="batch", batch=BATCH, micro=2, dtype="f64")
        whole = self.trained("dp=2", "zero3 dp", name="whole", **{k: v for k, v in settings.items() if k != "batch"})
        half = dict(settings, steps=3)
        half.pop("batch")
        self.trained("dp=2", "zero3 dp", name="half", **half)
        more = dict(half, steps=6)
        rest = self.trained("dp=2", "zero3 dp", "--resume", "auto", name="half", **more)
        self.assertEqual([row["loss"] for row in rest[0] if "loss" in row],
                         [row["loss"] for row in whole[0] if "loss" in row][3:])
        self.assertEqual(rest[1], whole[1])
        self.trained("dp=2", "zero3 dp", name="third", **half)
        other = self.trained("pp=2 dp=2", "pipeline pp,zero1 dp", "--resume", self.folder / "third", name="fourth", **more)
        self.equal((other[0], other[1]), (whole[0][-len(other[0]):], whole[1]), "resharded")

    def test_buffers_are_initialised_from_other_weights(self):
        first = self.trained("dp=1", "ddp dp", name="first", steps=4)[1]
        second = self.trained("dp=2", "zero3 dp", name="second", steps=1, **{"from": self.folder / "first"})[1]
        self.assertEqual(second["layer0.norm.num_batches_tracked"], [first["layer0.norm.num_batches_tracked"][0] + 1])

    def test_evaluations_read_running_statistics(self):
        """Statistics that never change leave evaluations as they are; the batch's own statistics do not."""
        losses = {}
        for track in (True, False):
            rows = self.trained("dp=1", "ddp dp", name=f"t{track}", track=track, lr=0.0, steps=4)[0]
            losses[track] = [row["eval_loss"] for row in rows if "eval_loss" in row]
        self.assertNotAlmostEqual(losses[True][0], losses[True][1], delta=1e-6)  # they come nearer to the data's
        self.assertAlmostEqual(losses[False][0], losses[False][1], delta=1e-12)

    def test_a_step_reduces_statistics_once(self):
        """Two means a layer, and their gradients; recomputation reads the means again instead of reducing them."""
        for again in ("", "layer"):
            ops = [op for stream in programs(PRUN, PLAN, 2, mesh="dp=2", list="ddp dp", batch=BATCH, again=again)[0].values()
                   for op in stream]
            small = [op for op in ops if op.kind == "all_reduce" and op.elements == 6]
            self.assertEqual(sum(op.phase == "forward" for op in small), 2 * 4)
            self.assertEqual(sum(op.phase == "backward" for op in small), 2 * 4)

    def test_memory_of_buffers(self):
        """Buffers have no gradient and no optimizer state, and are not sharded."""
        for list_of, ranks in (("zero3 dp", 2), ("ddp dp", 2), ("zero3 dp", 4)):
            roles = check(PRUN, PLAN, ranks, mesh=f"dp={ranks}", list=list_of, batch=BATCH)[0]["roles"]
            self.assertEqual(roles["buffer"], 4 * 3 * 32 * 8)  # 4 layers, 3 buffers of a line of bf16 each, f64
        roles = check(PRUN, PLAN, 2, mesh="pp=2", list="pipeline pp", batch=BATCH, micro=2)
        self.assertEqual([one["roles"]["buffer"] for one in roles], [2 * 3 * 32 * 8] * 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
