-- prun check PLAN --nproc 2
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8, layers = 2 },
  data      = prun.data.random { batch = 4 },
  strategy  = { prun.zero3 { axis = "dp", offload = "optimiser" } },
  optimizer = prun.adamw { lr = 0.1 },
}
