-- 5 ranks
-- The proof did not name the rounding of numbers on the wire.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 5 } }),
  model = prun.models.gpt { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 5 },
  strategy = arg.alone and {} or {
    prun.zero3 { axis = "dp", wire = "bf16" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
