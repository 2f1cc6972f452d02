-- prun check PLAN --nproc 2
-- Weights and batch cannot both be split over one axis.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { tp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.tensor_parallel { axis = "tp" }, prun.ddp { axis = "tp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 1,
  steps     = 2,
}
