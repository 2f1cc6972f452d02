-- A tiny GPT with evaluations, in a pipeline or of one stage under zero3.

local prun = require "prun"

local arg = prun.args {
  schedule = { "1f1b", "of the pipeline; none: zero3" },
  pp = 2, micro = 8, layers = 4, width = 32, batch = 40, steps = 2,
  data = "text/sample.txt",
}
local none = arg.schedule == "none"

return prun.plan {
  mesh      = prun.mesh { pp = none and 1 or arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = 2, context = 16 },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = none and { prun.zero3 { axis = "dp" } }
              or { prun.pipeline { axis = "pp", schedule = arg.schedule }, prun.zero1 { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e-3, clip = 1.0 },
  eval      = prun.eval { every = 1, batches = 2 },
  micro     = arg.micro,
  steps     = arg.steps,
}
