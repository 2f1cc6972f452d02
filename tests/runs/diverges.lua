-- diverges.lua: a learning rate at which the loss becomes NaN within a few steps.
local prun = require "prun"
local arg  = prun.args { lr = 1e30, steps = 6 }

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 8, outputs = 4, width = 16, layers = 3 },
  data      = prun.data.random { batch = 4 },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = arg.lr },
  steps     = arg.steps,
}
