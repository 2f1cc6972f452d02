-- 2 ranks
-- Context parallelism took the numbers of tokens of dropless experts for tokens, in models with views.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "cp", 2 } }),
  model = function(batch)
    local x
    local loads = {}
    x = nn.unit("embed", function()
      return nn.dropout(nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 2 }, { "normal", 0.5 })) + nn.embedding(batch.positions, nn.parameter("position.weight", { 4, 2 }, { "normal", 0.5 })), 0.1)
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 3, { bias = true })
      local seen = nn.attention(qkv, 1, { kv_heads = 1, causal = true, documents = batch.documents })
      x = x + nn.linear("proj", seen, 2, { bias = true })
      x = x + nn.moe("moe", nn.rmsnorm("ln2", x), { hidden = 17, experts = 5, choices = 2, gated = true, capacity = 0.5, dropless = true, documents = batch.documents, renormalise = false, scale = 2.5, loads = loads })
      return x
    end)
    return nn.again("embed", function()
      local y = x
      local logits = nn.linear("logits", y, 16, { weight = nn.parameter("token.weight", { 16, 2 }, { "normal", 0.5 }) })
      return prun.losses.cross_entropy(logits, batch.targets) + (0.1 * prun.losses.z_loss(logits)):named "z" + 0.1 * prun.losses.balance(loads)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 8, pack = "documents", eot = 5, long = "truncate", capacity = 4, vocab = 16 },
  strategy = arg.alone and {} or {
    prun.context_parallel { axis = "cp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
