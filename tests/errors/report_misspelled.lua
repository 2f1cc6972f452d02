-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh {},
  model     = prun.models.mlp { inputs = 4, outputs = 4, width = 8, layers = 1 },
  data      = prun.data.random { batch = 4 },
  report    = { every = 10, norm = true },
  optimizer = prun.sgd {},
}
