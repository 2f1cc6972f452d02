-- prun check PLAN --set layers=8
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8 },
  data      = prun.data.random { batch = 2 },
  optimizer = prun.sgd { lr = 0.1 },
}
