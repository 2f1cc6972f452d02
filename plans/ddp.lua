-- A small GPT on a text file with data parallelism: every rank has all parameters, gradients are averaged (DDP).

local prun = require "prun"
local arg  = prun.shared_args { bucket = { "25 MiB", "of a bucket of gradients", tune = "5 MiB,25 MiB,100 MiB" },
                                first = { "1 MiB", "the first" } }

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { prun.ddp { axis = "dp", bucket = arg.bucket, first = arg.first } },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
