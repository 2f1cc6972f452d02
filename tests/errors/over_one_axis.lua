-- prun check PLAN --nproc 2
-- Hybrid sharding needs two axes.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.zero3 { over = { "dp" } } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
