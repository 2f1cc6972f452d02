-- 6 ranks
-- Dropout counted the wrong tokens where tp and cp both divide them.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "tp", 3 }, { "cp", 2 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 32, 16 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 45, { bias = true, blocks = { 15, 15, 15 } })
      local seen = nn.attention(qkv, 3, { kv_heads = 3, causal = true })
      x = nn.dropout(nn.linear("proj", seen, 16, { bias = true }), 0.1)
      local h = nn.rmsnorm("ln2", x)
      x = nn.dropout(nn.linear("down", nn.tanh(nn.linear("up", h, 3, { bias = true })), 16, { bias = true }), 0.1)
      return x
    end)
    return nn.unit("head", function()
      local y = nn.rmsnorm("ln", x)
      return prun.losses.cross_entropy(nn.linear("logits", y, 32, { bias = false }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 14, context = 12, vocab = 32 },
  strategy = arg.alone and {} or {
    prun.tensor_parallel { axis = "tp", sequence = true },
    prun.context_parallel { axis = "cp" },
  },
  optimizer = prun.sgd { lr = 0.03, momentum = 0.9, weight_decay = 0.1 },
  micro = 14, steps = 2, seed = 2, dtype = "f64",
}
