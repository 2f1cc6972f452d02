-- 2 ranks
-- The bias of keys has a gradient of 0: exactly on one rank, by rounding on two, and lion takes its sign.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "tp", 2 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 8 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", x, 12, { bias = true, blocks = { 4, 4, 4 } })
      local seen = nn.attention(qkv, 2, { kv_heads = 2, causal = true })
      x = x + nn.linear("proj", seen, 8, { bias = true })
      x = x + nn.moe("moe", x, { hidden = 18, experts = 6, choices = 1, gated = false, aux = 0 })
      return x
    end)
    return nn.unit("head", function()
      local y = x
      return prun.losses.cross_entropy(nn.linear("logits", y, 16, { bias = false }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 1, context = 2, vocab = 16 },
  strategy = arg.alone and {} or {
    prun.tensor_parallel { axis = "tp" },
  },
  optimizer = prun.lion { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
