-- Adafactor under zero3 and tp: means of rows and columns, and norms, are all-reduced over shards and parts.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2, tp = 2 },
  model     = prun.models.mlp { inputs = 64, outputs = 64, width = 64, layers = 2 },
  data      = prun.data.random { batch = 4, inputs = 64, outputs = 64 },
  strategy  = {
    prun.zero3 { axis = "dp" },
    prun.tensor_parallel { axis = "tp", column = { "linear" }, row = {}, rows = {} },
  },
  optimizer = prun.adafactor { clip = 1 },
  steps     = 2,
}
