-- A small GPT on a text file in an interleaved pipeline: each rank has several chunks of layers, for a smaller bubble.

local prun = require "prun"

local arg = prun.shared_args {
  pp     = { 2, "ranks of the pipeline", least = 1, tune = "divisors" },
  chunks = { 2, "stages of each rank", least = 1, tune = "1,2,4" },
  micro  = { 8, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.pipeline { axis = "pp", schedule = "interleaved", chunks = arg.chunks },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
