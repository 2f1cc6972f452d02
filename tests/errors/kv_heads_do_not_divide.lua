-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = prun.models.llama { vocab = 256, layers = 1, width = 64, heads = 4, kv_heads = 3, context = 4 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 2 },
  optimizer = prun.sgd { lr = 0.1 },
}
