-- prun check PLAN --nproc 2
-- Turns belong to a schedule.
local prun = require "prun"

prun.forward(0)

return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 1,
  steps     = 2,
}
