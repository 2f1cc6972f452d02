-- Activation recomputation: between forward and backward a block keeps only its input; backward recomputes the rest
-- into separate buffers.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 8, heads = 2, context = 4 },
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = 4 },
  strategy  = { prun.recompute {}, prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
