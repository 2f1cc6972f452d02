-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = function(batch) return prun.nn.linear("a", batch.x, 16) end,
  data      = prun.data.random { batch = 2, inputs = 8, outputs = 16 },
  optimizer = prun.sgd { lr = 0.1 },
}
