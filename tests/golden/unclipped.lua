-- Without clipping no update waits for a norm: updates of complete gradients overlap with the last reductions, and the
-- others come after the prefetch of the parameters that the next step reads first.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 8, layers = 5, width = 8, outputs = 8 },
  data      = prun.data.random { batch = 4, inputs = 8, outputs = 8 },
  strategy  = { prun.zero2 { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
}
