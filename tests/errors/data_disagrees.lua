-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = prun.models.gpt { layers = 1, width = 8, heads = 1, context = 8 },
  data      = prun.data.bytes { path = "files/eight_bytes.txt", batch = 1, context = 4 },
  optimizer = prun.sgd { lr = 0.1 },
}
