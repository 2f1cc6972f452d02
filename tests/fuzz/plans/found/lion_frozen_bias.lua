-- 1 ranks
-- The proof aborted, because it looked up the gradient of a frozen parameter for the sign that Lion takes.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 1 } }),
  model = prun.models.gpt { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 1 },
  strategy = arg.alone and {} or {
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.lion { lr = 0.1 },
  frozen = "*.bias",
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
