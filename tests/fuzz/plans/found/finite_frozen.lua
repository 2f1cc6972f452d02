-- 2 ranks, device=cpu, check_finite=1
-- The verifier refused --check-finite of a plan with frozen parameters: a norm computes a gradient that no op needs.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 2 } }),
  model = prun.models.gpt { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 2 },
  strategy = arg.alone and {} or { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  frozen = "embed*|block0.*",
  micro = 1, steps = 2, seed = 0, dtype = "f32",
}
