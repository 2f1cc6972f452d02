-- A tiny GPT with its optimizer state on the device or on the host, for offload_test.py.

local prun = require "prun"

local arg = prun.args {
  strategy = { "zero3", "ddp, zero1, zero2 or zero3" },
  offload = { "", "optimizer, or empty" },
  piece = { "16 MiB", "size of a piece" }, ahead = 2,
  optimizer = "adamw",
  dtype = "f32",
  clip = 1.0,
  evaluates = false,
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun[arg.strategy] { axis = "dp", offload = arg.offload, offload_piece = arg.piece,
                                     offload_ahead = arg.ahead } },
  optimizer = prun[arg.optimizer] { lr = 1e-2, clip = arg.clip },
  eval      = arg.evaluates and prun.eval { every = 2, batches = 1 } or nil,
  steps     = 6,
  dtype     = arg.dtype,
  reduce    = "rank_order",
}
