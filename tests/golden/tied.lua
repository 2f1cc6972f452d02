-- A head tied to the token embedding, fully sharded: the embedding's unit is called twice, so it is gathered for both
-- uses and its gradient is the sum of two.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 1, width = 32, heads = 2, context = 16, tied = true },
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = 8 },
  strategy  = { prun.zero3 { axis = "dp", prefetch = 1 } },
  optimizer = prun.adamw { lr = 1e-3 },
  steps     = 2,
}
