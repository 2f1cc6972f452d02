-- prun check PLAN --nproc 2
-- Random vectors have no tokens to split.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { cp = 2 },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8, layers = 2 },
  data      = prun.data.random { batch = 8 },
  strategy  = { prun.context_parallel { axis = "cp" } },
  optimizer = prun.sgd { lr = 0.1 },
}
