-- Recomputation of a whole block, as in frameworks that rerun its forward: backward does not need its last results.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 8, heads = 2, context = 4 },
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = 4 },
  strategy  = { prun.recompute { whole = true }, prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
