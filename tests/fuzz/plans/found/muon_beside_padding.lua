-- 4 ranks, pad_vocabulary=20
-- Muon of matrices without padding was refused where their group also has the padded logits.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 4 } }),
  model = prun.models.gpt { heads = 1, layers = 1, context = 2, vocab = 19, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 4 },
  strategy = arg.alone and {} or { prun.ddp { axis = "dp" } },
  optimizer = prun.groups {
    { match = "embed*", optimizer = prun.sgd { lr = 0.1 } },
    { dims = 2, optimizer = prun.muon { lr = 0.02 } },
    prun.sgd { lr = 0.1 },
  },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
