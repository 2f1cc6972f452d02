-- A small GPT in a pipeline whose stages write into each other's memory, one-sided.
-- A rank signals when a region of its arena is free; the previous rank puts activations there and signals back.

local prun = require "prun"

local arg = prun.shared_args {
  pp       = { 2, "ranks of the pipeline", least = 1, tune = "divisors" },
  schedule = { "1f1b", "gpipe, 1f1b, interleaved, zb_h1 or zb_v", tune = "1f1b,interleaved,zb_h1,zb_v" },
  micro    = { 8, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.schedule, transfer = "put" },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
