-- 4 ranks
-- Experts above frozen layers computed gradients that nothing reads. A bias and a balancing loss added up loads twice.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

local halves = prun.schedule("halves", function(_, _, micro)
  for i = 0, micro - 1 do prun.forward(i) end
  for i = 0, micro - 1 do
    if i % 2 == 0 then prun.backward(i) else prun.backward_input(i) end
  end
  for i = 1, micro - 1, 2 do prun.backward_weight(i) end
end)

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 2 }, { "pp", 2 } }),
  model = function(batch)
    local x
    local loads = {}
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 24, 20 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      x = nn.moe("moe", x, { hidden = 12, experts = 5, choices = 1, gated = true, capacity = 0.25, dropless = true, documents = batch.documents, renormalise = false, groups = 5, groups_kept = 1, bias_rate = 0.1, loads = loads })
      return x
    end)
    x = nn.unit("block1", function()
      x = nn.moe("moe", x, { hidden = 12, experts = 5, choices = 1, gated = true, capacity = 0.25, dropless = true, documents = batch.documents, renormalise = false, groups = 5, groups_kept = 1, bias_rate = 0.1, loads = loads })
      return x
    end)
    x = nn.unit("block2", function()
      x = nn.moe("moe", x, { hidden = 12, experts = 5, choices = 1, gated = true, capacity = 0.25, dropless = true, documents = batch.documents, renormalise = false, groups = 5, groups_kept = 1, bias_rate = 0.1, loads = loads })
      return x
    end)
    x = nn.unit("block3", function()
      x = nn.moe("moe", x, { hidden = 12, experts = 5, choices = 1, gated = true, capacity = 0.25, dropless = true, documents = batch.documents, renormalise = false, groups = 5, groups_kept = 1, bias_rate = 0.1, loads = loads })
      return x
    end)
    x = nn.unit("block4", function()
      x = nn.moe("moe", x, { hidden = 12, experts = 5, choices = 1, gated = true, capacity = 0.25, dropless = true, documents = batch.documents, renormalise = false, groups = 5, groups_kept = 1, bias_rate = 0.1, loads = loads })
      return x
    end)
    x = nn.unit("block5", function()
      x = nn.moe("moe", x, { hidden = 12, experts = 5, choices = 1, gated = true, capacity = 0.25, dropless = true, documents = batch.documents, renormalise = false, groups = 5, groups_kept = 1, bias_rate = 0.1, loads = loads })
      return x
    end)
    return nn.unit("head", function()
      local y = x
      local logits = nn.linear("logits", y, 24, { bias = false })
      return prun.losses.cross_entropy(logits, batch.targets) + 0.1 * prun.losses.balance(loads)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 10, pack = "documents", eot = 10, long = "split", capacity = 4, vocab = 24 },
  strategy = arg.alone and {} or {
    prun.ddp { axis = "dp" },
    prun.pipeline { axis = "pp", schedule = halves, split = "flops" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  frozen = "embed*|block0.*",
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
