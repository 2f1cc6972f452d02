-- A plan whose losses identify the samples of a step. The model is one weight w, sample i of the data is 2^i, and a
-- step's loss is w times the mean of its batch, so loss * batch / w is a sum of distinct powers of two.
local prun = require "prun"

local arg = prun.args {
  data = "x.npy", batch = 4, steps = 2, order = "epochs", seed = 0, outputs = 1,
  lr = 0.0, momentum = 0.0, memory = 0, init = "", strategy = { "ddp", choices = { "ddp", "zero1", "zero2", "zero3" } },
}

return prun.plan {
  mesh       = prun.mesh { dp = prun.world },
  model      = prun.models.mlp { inputs = 1, outputs = arg.outputs, layers = 1, bias = false, loss = "mean" },
  init       = arg.init ~= "" and prun.init.from { path = arg.init } or nil,
  data       = prun.data.arrays { x = arg.data, batch = arg.batch, order = arg.order },
  strategy   = { prun[arg.strategy] { axis = "dp" } },
  optimizer  = prun.sgd { lr = arg.lr, momentum = arg.momentum },
  checkpoint = arg.memory > 0 and prun.checkpoint { replicate = 1, memory_every = arg.memory } or nil,
  steps      = arg.steps, seed = arg.seed,
}
