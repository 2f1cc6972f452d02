-- Norms of units with different placements: shards over dp, a unit that remains whole, columns over tp.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2, tp = 2 },
  model     = prun.models.mlp { inputs = 4, outputs = 4, width = 8, layers = 2 },
  data      = prun.data.random { batch = 4 },
  report    = { every = 5, norms = true },
  strategy  = {
    prun.zero3 { axis = "dp" },
    prun.tensor_parallel { axis = "tp", column = { "linear" }, row = {}, rows = {} },
  },
  optimizer = prun.sgd { lr = 0.1, clip = 1.0 },
}
