-- No norm is waited for: updates of gradients that are there run while the last ones are reduced, and the others behind
-- the gathers of what the next step reads first.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 8, layers = 5, width = 8, outputs = 8 },
  data      = prun.data.random { batch = 4, inputs = 8, outputs = 8 },
  strategy  = { prun.zero2 { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
}
