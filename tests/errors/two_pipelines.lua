-- prun check PLAN --nproc 4
-- A model is cut into stages once.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { { "a", 2 }, { "b", 2 } },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.pipeline { axis = "a" }, prun.pipeline { axis = "b" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 1,
  steps     = 2,
}
