-- prun check PLAN --nproc 4
-- Both would have a part of the tokens.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { cp = 2, tp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.context_parallel { axis = "cp" }, prun.tensor_parallel { axis = "tp", sequence = true } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
