-- 1 ranks, check_finite=1
-- The balancing loss of a microbatch of padding was 0 / 0.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 1 } }),
  model = prun.models.mixtral { heads = 1, layers = 1, context = 4, vocab = 16, width = 8, kv_heads = 1, hidden = 4, experts = 5, choices = 2, aux = 0.1 },
  data = prun.data.tokens { path = "ids.bin", batch = 4, pack = "documents", eot = 7, long = "truncate" },
  strategy = arg.alone and {} or {
    prun.expert_parallel { axis = "dp" },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 4, steps = 2, seed = 1, dtype = "f64",
}
