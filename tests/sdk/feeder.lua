-- Trains on the batches of feeder.c: y is the sum of x.
local prun = require "prun"

local arg = prun.args { name = "sums" }

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 4, outputs = 1, width = 16, layers = 1 },
  data      = prun.data.feed { name = arg.name, batch = 8, inputs = { x = { "float32", 4 }, y = { "float32", 1 } } },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.2 },
  steps     = 60,
}
