-- 2 ranks
-- The fuzzer called it an overclaim. Adam with L2 magnifies the rounding of a zero gradient, here of the keys' bias.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "tp", 2 } }),
  model = prun.models.moe { heads = 2, layers = 1, context = 2, vocab = 16, width = 2, choices = 1, capacity = 100.0 },
  data = prun.data.tokens { path = "ids.bin", batch = 1 },
  strategy = arg.alone and {} or {
    prun.tensor_parallel { axis = "tp" },
  },
  optimizer = prun.adam { lr = 0.1, weight_decay = 0.1, clip = 0.3 },
  micro = 1, steps = 4, seed = 0, dtype = "f64",
}
