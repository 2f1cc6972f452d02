-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { width = 8 },
  optimizer = prun.sgd { lr : 0.1 },
}
