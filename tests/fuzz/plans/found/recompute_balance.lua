-- 2 ranks
-- Recomputation summed the loads of the balancing loss again, in place.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 2 } }),
  model = prun.models.mixtral { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 2 },
  strategy = arg.alone and {} or {
    prun.recompute { units = { "head" } },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
