-- 2 ranks
-- The proof did not name the choices that experts drop.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "ep", 2 } }),
  model = prun.models.moe { heads = 1, layers = 1, context = 2, vocab = 16, width = 2, choices = 1, capacity = 1.0 },
  data = prun.data.tokens { path = "ids.bin", batch = 2 },
  strategy = arg.alone and {} or {
    prun.expert_parallel { axis = "ep" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
