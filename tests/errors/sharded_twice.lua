-- prun check PLAN --nproc 4
-- Two strategies want the parameters in pieces.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2, cp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.zero3 { axis = "dp" }, prun.zero3 { axis = "cp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 1,
  steps     = 2,
}
