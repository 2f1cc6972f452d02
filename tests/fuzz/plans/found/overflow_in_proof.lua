-- 1 ranks
-- The proof reported numbers that overflow in its small run as a difference.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "ep", 1 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 32, 36 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", x, 24, { bias = true, blocks = { 12, 6, 6 } })
      local seen = nn.attention(qkv, 2, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 36, { bias = true })
      x = x + nn.moe("moe", x, { hidden = 13, experts = 4, choices = 1, gated = true })
      x = x + x * x * 15
      return x
    end)
    x = nn.unit("block1", function()
      local qkv = nn.linear("qkv", x, 24, { bias = true, blocks = { 12, 6, 6 } })
      local seen = nn.attention(qkv, 2, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 36, { bias = true })
      x = x + nn.moe("moe", x, { hidden = 13, experts = 4, choices = 1, gated = true })
      x = x + x * x * 15
      return x
    end)
    return nn.unit("head", function()
      local y = x
      return prun.losses.cross_entropy(nn.linear("logits", y, 32, { bias = false }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 1, context = 2, vocab = 32 },
  strategy = arg.alone and {} or {
    prun.expert_parallel { axis = "ep" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
