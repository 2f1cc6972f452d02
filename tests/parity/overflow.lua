-- The first update moves the parameters so far that a GEMM overflows in the second step.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8, layers = 2 },
  data      = prun.data.random { batch = 4 },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e30 },
  steps     = 4,
}
