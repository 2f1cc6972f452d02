-- 4 ranks
-- Experts and parameters that persist: the state of a unit had no offset.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "ep", 4 }, { "dp", 1 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 31, 21 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 35, { bias = true, blocks = { 21, 7, 7 } })
      local seen = nn.attention(qkv, 3, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 21, { bias = true })
      x = x + nn.moe("moe", nn.rmsnorm("ln2", x), { hidden = 20, experts = 4, choices = 1, gated = true, aux = 0 })
      return x
    end)
    x = nn.unit("block1", function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 35, { bias = true, blocks = { 21, 7, 7 } })
      local seen = nn.attention(qkv, 3, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 21, { bias = true })
      x = x + nn.moe("moe", nn.rmsnorm("ln2", x), { hidden = 20, experts = 4, choices = 1, gated = true, aux = 0 })
      return x
    end)
    x = nn.unit("block2", function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 35, { bias = true, blocks = { 21, 7, 7 } })
      local seen = nn.attention(qkv, 3, { kv_heads = 1, causal = true })
      x = x + nn.linear("proj", seen, 21, { bias = true })
      x = x + nn.moe("moe", nn.rmsnorm("ln2", x), { hidden = 20, experts = 4, choices = 1, gated = true, aux = 0 })
      return x
    end)
    return nn.again("embed", function()
      local y = x
      return prun.losses.cross_entropy(nn.linear("logits", y, 31, { weight = nn.parameter("token.weight", { 31, 21 }, { "normal", 0.5 }) }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 16, context = 2, vocab = 31 },
  strategy = arg.alone and {} or {
    prun.zero3 { axis = "dp", inflight = 4, persist_below = "4000 B", offload = "optimizer", offload_ahead = 2, offload_piece = "16 MiB" },
    prun.expert_parallel { axis = "ep", bucket = "1 MiB" },
  },
  optimizer = prun.adamw { lr = 0.01 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
