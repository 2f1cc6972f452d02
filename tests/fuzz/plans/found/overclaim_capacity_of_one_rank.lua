-- 6 ranks
-- The ranks' experts have slots for all of their few tokens, and one rank's have not.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp2", 6 } }),
  model = prun.models.moe { heads = 1, layers = 1, context = 2, vocab = 16, width = 2, choices = 3, capacity = 1.0 },
  data = prun.data.tokens { path = "ids.bin", batch = 12 },
  strategy = arg.alone and {} or {
    prun.ddp { axis = "dp2" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 2, steps = 1, seed = 0, dtype = "f64",
}
