-- A tiny GPT with all-gathers carried over the end of a step and weights shared by microbatches; for between_test.py.

local prun = require "prun"

local arg = prun.args {
  strategy = { "zero3", "zero1, zero2 or zero3" },
  pp = { 1, "ranks of a pipeline" },
  micro = 1, dtype = "f32",
  between = { 1000, "evaluations and reports after every so many steps", least = 1 },
}

local strategy = { prun[arg.strategy] { axis = "dp" } }
if arg.pp > 1 then strategy[2] = prun.pipeline { axis = "pp", schedule = "1f1b" } end

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 64, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 12 },
  strategy  = strategy,
  optimizer = prun.adamw { lr = 1e-2, clip = 1.0 },
  eval      = prun.eval { every = arg.between, batches = 2 },
  report    = { every = arg.between, norms = true },
  micro     = arg.micro,
  steps     = 6,
  dtype     = arg.dtype,
  reduce    = "rank_order",
}
