-- prun check PLAN --nproc 2
-- 1F1B has one chunk a rank.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { pp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.pipeline { axis = "pp", schedule = "1f1b", chunks = 2 } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 2,
  steps     = 2,
}
