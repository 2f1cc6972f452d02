-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = 1 },
  optimiser = prun.sgd { lr = 0.1 },
}
