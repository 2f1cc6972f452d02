-- Layers of x·W in a pipeline with nothing in between; tests of schedules count and time their ops.

local prun = require "prun"

local arg = prun.args {
  pp = 2, schedule = "gpipe", chunks = 1, layers = 4, width = 8, batch = 8, micro = 4, steps = 2,
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp },
  model     = prun.models.mlp { inputs = arg.width, outputs = arg.width, width = arg.width, layers = arg.layers,
                                bias = false, activation = "none" },
  data      = prun.data.random { batch = arg.batch },
  strategy  = { prun.pipeline { axis = "pp", schedule = arg.schedule, chunks = arg.chunks } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = arg.micro,
  steps     = arg.steps,
}
