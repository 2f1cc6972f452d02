-- 2 ranks
-- The proof refused the running average of weights whose gradients are rounding, of which Lion takes the sign.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "tp", 2 } }),
  model = prun.models.gpt { heads = 2, layers = 1, context = 2, vocab = 16, width = 4 },
  data = prun.data.tokens { path = "ids.bin", batch = 1 },
  strategy = arg.alone and {} or {
    prun.tensor_parallel { axis = "tp" },
  },
  optimizer = prun.lion { lr = 0.1, ema = 0.99 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
