-- Weights that two microbatches read are packed in front of the first product that reads them, of both ways those of the
-- gradients first; the copies take no more than a quarter of what persists.
local prun = require "prun"

return prun.plan {
  mesh         = prun.mesh { dp = prun.world },
  model        = prun.models.mlp { inputs = 64, layers = 2, width = 64, outputs = 64 },
  data         = prun.data.random { batch = 16, inputs = 64, outputs = 64 },
  strategy     = { prun.ddp { axis = "dp" } },
  optimizer    = prun.adamw { lr = 0.1 },
  micro        = 2,
}
