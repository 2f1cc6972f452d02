-- 1 ranks
-- The parameters of the first unit were freed before whole recomputation read them.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 1 } }),
  model = prun.models.llama { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 1 },
  strategy = arg.alone and {} or {
    prun.recompute { whole = true, units = { "block", "head", "embed" } },
    prun.zero3 { axis = "dp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
