-- Windows of tokens for a model without a table of positions, so that the context may change.
local prun = require "prun"

local arg = prun.args { path = "all.bin", context = 4, batch = 2, steps = 1 }

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = prun.models.llama { vocab = 50, layers = 1, width = 16, heads = 2, context = arg.context },
  data  = prun.data.tokens { path = arg.path, batch = arg.batch, order = "epochs" },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = arg.steps,
}
