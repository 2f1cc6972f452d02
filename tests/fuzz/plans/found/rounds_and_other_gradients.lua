-- 2 ranks
-- The verifier refused dropless experts whose weights have another gradient: of an L2 loss, or of a repeated unit.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "pp", 2 } }),
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 2 }, { "normal", 0.5 }))
    end)
    for i = 0, 1 do
      local function block()
        local options = { hidden = 2, experts = 3, choices = 2, capacity = 0.5, dropless = true }
        return x + nn.moe("moe", x, options) + nn.moe("other", x, options)
      end
      x = nn.unit("block" .. i, block)
      x = nn.again("block" .. i, block)
    end
    return nn.unit("head", function()
      local logits = nn.linear("logits", x, 16, { bias = false })
      return prun.losses.cross_entropy(logits, batch.targets) + 1e-2 * prun.losses.l2 "*.weight"
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 4, context = 4, vocab = 16 },
  strategy = arg.alone and {} or { prun.pipeline { axis = "pp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 2, steps = 2, seed = 0, dtype = "f64",
}
