-- 2 ranks
-- The second step magnifies the rounding of the first one. The proof reported it as a difference.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 2 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 20 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", x, 20, { bias = true, blocks = { 10, 5, 5 } })
      local seen = nn.attention(qkv, 2, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 20, { bias = true })
      local h = x
      x = x + nn.linear("down", nn.relu(nn.linear("up", h, 3, { bias = true })), 20, { bias = true })
      x = x + x * x * 1
      return x
    end)
    x = nn.unit("block1", function()
      local qkv = nn.linear("qkv", x, 20, { bias = true, blocks = { 10, 5, 5 } })
      local seen = nn.attention(qkv, 2, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 20, { bias = true })
      local h = x
      x = x + nn.linear("down", nn.relu(nn.linear("up", h, 3, { bias = true })), 20, { bias = true })
      x = x + x * x * 1
      return x
    end)
    return nn.unit("head", function()
      local y = x
      return prun.losses.cross_entropy(nn.linear("logits", y, 16, { bias = false }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 4, context = 2, vocab = 16 },
  strategy = arg.alone and {} or {
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
