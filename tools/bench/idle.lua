-- A minimal job, to measure the cost of ranks themselves.
local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.mlp { layers = 1, width = 8 },
  data = prun.data.random { batch = prun.world },
  strategy = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps = prun.args { steps = 3 }.steps,
}
