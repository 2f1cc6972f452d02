-- prun check PLAN
local prun = require "prun"
return prun.plan {
  mesh      = prun.mesh {},
  model     = prun.models.gpt { vocab = 256, layers = 1, width = 8, heads = 1, context = 8 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 4 },
  eval      = prun.eval { every = 2, data = prun.data.bytes { path = "none.txt", batch = 4 } },
  optimizer = prun.sgd {},
}
