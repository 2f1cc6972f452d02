-- 4 ranks
-- A fused qkv without blocks, cut by tp under cp, was accepted without a proof.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "tp", 2 }, { "cp", 2 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 2 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 6, { bias = false })
      local seen = nn.attention(qkv, 2, { kv_heads = 2, causal = true })
      x = x + nn.linear("proj", seen, 2, { bias = false })
      x = x + nn.moe("moe", nn.rmsnorm("ln2", x), { hidden = 2, experts = 2, choices = 2, gated = false })
      return x
    end)
    return nn.unit("head", function()
      local y = nn.rmsnorm("ln", x)
      return prun.losses.cross_entropy(nn.linear("logits", y, 16, { bias = false }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 4, order = "epochs", context = 4, vocab = 16 },
  strategy = arg.alone and {} or {
    prun.context_parallel { axis = "cp", bucket = "1 KiB" },
    prun.tensor_parallel { axis = "tp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
