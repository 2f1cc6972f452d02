-- Muon under zero3 and tp: directions are gathered over shards and parts, owners orthogonalize, chunks are gathered.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2, tp = 2 },
  model     = prun.models.mlp { inputs = 64, outputs = 64, width = 64, layers = 2 },
  data      = prun.data.random { batch = 4, inputs = 64, outputs = 64 },
  strategy  = {
    prun.zero3 { axis = "dp" },
    prun.tensor_parallel { axis = "tp", column = { "linear" }, row = {}, rows = {} },
  },
  optimizer = prun.groups { { dims = 1, optimizer = prun.adamw { lr = 1e-3 } }, prun.muon { lr = 0.02 } },
  steps     = 2,
}
