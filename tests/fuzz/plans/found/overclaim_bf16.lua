-- 3 ranks
-- The proof did not name the rounding of bf16.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 3 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 4 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      return x
    end)
    return nn.again("embed", function()
      local y = x
      return prun.losses.cross_entropy(nn.linear("logits", y, 16, { weight = nn.parameter("token.weight", { 16, 4 }, { "normal", 0.5 }) }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 12, context = 2, vocab = 16 },
  strategy = arg.alone and {} or {
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 2, seed = 0, dtype = "bf16",
}
