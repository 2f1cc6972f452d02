-- 8 ranks
-- The last group of Muon's matrices lost the names of its owners' axes.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "tp", 4 }, { "dp", 2 } }),
  model = prun.models.mixtral { heads = 4, layers = 3, context = 11, vocab = 31, width = 16, kv_heads = 4, hidden = 12, experts = 6, choices = 2, aux = 0 },
  data = prun.data.tokens { path = "ids.bin", batch = 4 },
  strategy = arg.alone and {} or {
    prun.tensor_parallel { axis = "tp" },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.groups { { dims = 1, optimizer = prun.adamw { lr = 0.01, eps = 1e-3 } }, { match = "embed*|head*", optimizer = prun.adamw { lr = 0.01, eps = 1e-3 } }, prun.muon { lr = 0.02, adjust = "original" } },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
