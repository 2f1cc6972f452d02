-- A small GPT on a text file with the tokens of each sample split over ranks: keys and values pass around a ring.

local prun = require "prun"

local arg = prun.shared_args {
  cp = { 2, "ranks that split the tokens of a sample", least = 1, tune = "divisors" },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, cp = arg.cp },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.ddp { axis = "dp" },
    prun.context_parallel { axis = "cp" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
