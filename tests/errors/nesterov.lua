-- prun check PLAN --nproc 1
local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = 1 }, model = prun.models.mlp {}, data = prun.data.random { batch = 4 },
  optimizer = prun.sgd { lr = 0.1, nesterov = true },
}
