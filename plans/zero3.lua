-- A small GPT on a text file, fully sharded (ZeRO-3): each rank keeps 1/N of parameters, gradients and optimizer state.

local prun = require "prun"

local arg = prun.shared_args { prefetch = { 1, "units gathered ahead of compute", least = 0, tune = "0,1,2" } }

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { prun.zero3 { axis = "dp", prefetch = arg.prefetch } },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
