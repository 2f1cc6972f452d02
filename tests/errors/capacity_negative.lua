-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = prun.models.moe {
    vocab = 256, layers = 1, width = 8, heads = 2, context = 4, experts = 2,
    capacity = -1,
  },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 2 },
  optimizer = prun.sgd { lr = 0.1 },
}
