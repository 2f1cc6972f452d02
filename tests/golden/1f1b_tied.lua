-- A head tied to the token embedding in a pipeline: the table is stored on the first and the last rank, and both add
-- the other's gradient to their own at the end of a step.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { pp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 1, width = 8, heads = 2, context = 4, tied = true },
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = 4 },
  strategy  = { prun.pipeline { axis = "pp", schedule = "1f1b" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 4,
  steps     = 2,
}
