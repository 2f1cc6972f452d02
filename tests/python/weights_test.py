#!/usr/bin/env python3
"""prun.load and prun.save with numpy and, where it is installed, torch. Usage: weights_test.py BUILD PRUN"""
import os
import pathlib
import re
import sys
import tempfile
import unittest

import venv_of_tests

TOP = pathlib.Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    venv_of_tests.rerun_inside(sys.argv[1])
os.environ["PRUN_COMMAND"] = os.path.abspath(sys.argv[2])
sys.path.insert(0, str(TOP / "tools/python"))
import numpy  # noqa: E402
import prun  # noqa: E402
import safetensors.numpy  # noqa: E402

try:
    import torch
except ImportError:
    torch = None
    print("NOT TESTED: torch is not installed here")

# A model of the plan's own with square linear layers, whose shape is the same in both layouts.
PLAN = """
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { path = "", steps = 1, lr = 0.001 }
local function model(batch)
  local x = nn.unit("embed", function() return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 16 }, { "normal", 0.02 })) end)
  x = nn.unit("body", function()
    return x + nn.linear("inner", nn.gelu(nn.linear("square", nn.layernorm("ln", x), 16)), 16, { bias = false })
  end)
  return nn.unit("head", function() return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets) end)
end
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = model,
  init = arg.path ~= "" and prun.init.from { path = arg.path } or nil,
  data = prun.data.bytes { path = "text/sample.txt", batch = 4, context = 8 },
  strategy = { prun.zero3 { axis = "dp" } },
  optimizer = prun.sgd { lr = arg.lr },
  steps = arg.steps,
}
"""


class Weights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def train(self, nproc=2, **options):
        settings = options.pop("set", {})
        return prun.run(PLAN, nproc=nproc, set=settings, **options)

    def test_round_trip(self):
        self.train(checkpoint="a")
        state = prun.load("a")
        self.assertEqual(state["head.logits.weight"].shape, (256, 16))
        self.assertEqual(state["embed.token.weight"].shape, (256, 16))
        prun.save(state, "b")
        self.train(set={"path": "b", "lr": 0}, checkpoint="c")  # learns nothing
        again = prun.load("c")
        for name, value in state.items():
            numpy.testing.assert_array_equal(again[name], value, name)

    def test_layout_is_that_of_pytorch(self):
        """A square weight, whose shape is the same in both layouts."""
        self.train(checkpoint="a")
        state = prun.load("a")
        raw = {}
        for file in pathlib.Path("a").glob("step_*/*.safetensors"):
            for name, value in safetensors.numpy.load_file(file).items():
                raw.setdefault(name, []).append(value.reshape(-1))
        square = numpy.concatenate(raw["body.square.weight"]).reshape(16, 16)
        self.assertFalse((square == square.T).all())
        numpy.testing.assert_array_equal(numpy.sort(state["body.square.weight"].ravel()), numpy.sort(square.ravel()))
        numpy.testing.assert_array_equal(state["body.square.weight"], square.T)

    def test_files_of_safetensors(self):
        state = {"w": numpy.arange(6, dtype="f4").reshape(2, 3), "s": numpy.array(2.5), "h": numpy.ones(3, "f2"), "n": numpy.zeros((0, 2), "i8")}
        safetensors.numpy.save_file(state, "plain.safetensors")
        self.same(prun.load("plain.safetensors"), state)
        prun.save(state, "ours")
        self.same(safetensors.numpy.load_file("ours/model.safetensors"), state)
        self.same(prun.load("ours"), state)

    def same(self, found, wanted):
        self.assertEqual(set(found), set(wanted))
        for name, value in wanted.items():
            self.assertEqual((found[name].dtype, found[name].shape), (value.dtype, value.shape), name)
            numpy.testing.assert_array_equal(found[name], value)

    def test_plan_reads_a_file_of_safetensors(self):
        self.train(checkpoint="a")
        state = prun.load("a")
        os.mkdir("plain")
        safetensors.numpy.save_file({name: numpy.ascontiguousarray(value) for name, value in state.items()}, "plain/model.safetensors")
        first = self.train(set={"path": "plain", "steps": 1})[0]["loss"]
        second = self.train(nproc=1, set={"path": os.path.abspath("a"), "steps": 1})[0]["loss"]
        self.assertAlmostEqual(first, second, places=5)

    def test_export_without_linear_keys(self):
        self.train(checkpoint="a")
        for index in pathlib.Path("a").glob("step_*/index.json"):
            index.write_text(re.sub(r'("linear_layer": ?)true', r"\1false", index.read_text()))
        with self.assertRaisesRegex(prun.CheckpointError, "does not record which weights belong to linear layers"):
            prun.load("a")

    def test_names_of_a_description(self):
        self.train(checkpoint="a")
        own = prun.load("a")
        lines = [f"- {{ tensor: {name.replace('.', '_')}, ours: {name} }}" for name in own if name != "head.logits.weight"]
        pathlib.Path("own.yaml").write_text("\n".join(["tensors:", "- { tensor: out, ours: head.logits.weight, layout: out_in }", *lines]))
        state = prun.load("a", description="own.yaml")
        self.assertEqual(len(state), len(own))
        numpy.testing.assert_array_equal(state["out"], own["head.logits.weight"])
        numpy.testing.assert_array_equal(state["embed_token_weight"], own["embed.token.weight"])
        with self.assertRaisesRegex(prun.UsageError, "there is no file 'onw.yaml'"):
            prun.load("a", description="onw.yaml")

    def test_mistakes(self):
        with self.assertRaisesRegex(prun.CheckpointError, "no weights at nowhere"):
            prun.load("nowhere")
        with self.assertRaisesRegex(prun.UsageError, "'numpy' or 'torch', is 'jax'"):
            prun.load("nowhere", framework="jax")
        pathlib.Path("cut.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{}")
        with self.assertRaisesRegex(prun.CheckpointError, "it is cut"):
            prun.load("cut.safetensors")
        with self.assertRaisesRegex(prun.UsageError, "c is complex64"):
            prun.save({"c": numpy.zeros(2, "c8")}, "out")
        with self.assertRaisesRegex(prun.UsageError, r"prun.save\(state, folder\) writes a dict .* was given str and dict"):
            prun.save("out", {"a": numpy.zeros(2)})
        prun.save({"body.square.weight": numpy.zeros((3, 3), "f4")}, "few")
        with self.assertRaisesRegex(prun.CheckpointError, "do not fit this plan"):
            self.train(set={"path": "few"})

    @unittest.skipIf(torch is None, "torch is not installed here")
    def test_torch(self):
        state = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "t": torch.arange(6.0).reshape(2, 3).T}
        prun.save(state, "ours")
        for name, value in prun.load("ours", framework="torch").items():
            self.assertTrue(torch.equal(value, state[name]), name)
            self.assertEqual(value.dtype, state[name].dtype)
        numpy.testing.assert_array_equal(prun.load("ours")["b"], numpy.ones(3, "f4"))
        self.train(checkpoint="a")
        layer = torch.nn.Linear(16, 256)
        weights = prun.load("a", framework="torch")
        layer.load_state_dict({name: weights[f"head.logits.{name}"] for name in ("weight", "bias")})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
