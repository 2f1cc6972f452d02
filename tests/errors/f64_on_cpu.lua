-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8, layers = 1 },
  data      = prun.data.random { batch = 4 },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  dtype     = "f64",
}
