-- 3 ranks
-- The counts of experts that whole recomputation makes again were refused as lost.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "ep", 3 } }),
  model = prun.models.mixtral { heads = 1, layers = 1, context = 2, vocab = 16, width = 2, experts = 6 },
  data = prun.data.tokens { path = "ids.bin", batch = 3 },
  strategy = arg.alone and {} or {
    prun.recompute { whole = true, units = { "block" } },
    prun.expert_parallel { axis = "ep" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
