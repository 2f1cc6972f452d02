-- 1 ranks
-- A custom strategy that keeps no parameter whole was refused.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { alone = false }

local small_whole = prun.strategy("small_whole", { axis = { "dp", "mesh axis" }, below = { "8 KiB", "size" } }, function(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", prefetch = 1 }) end
  unit.params:flat { least = opt.below }:place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full, { keep = unit.last }) end)
  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, into = unit.grad_shard, stream = "reduce" })
    prun.all_reduce(unit.grads, { axis = opt.axis, stream = "reduce" })
  end)
end)

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 1 } }),
  model = function(batch)
    local x
    x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 16, 2 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function()
      return x
    end)
    return nn.unit("head", function()
      local y = x
      return prun.losses.cross_entropy(nn.linear("logits", y, 16, { bias = false }), batch.targets)
    end)
  end,
  data = prun.data.tokens { path = "ids.bin", batch = 1, context = 2, vocab = 16 },
  strategy = arg.alone and {} or {
    small_whole { axis = "dp", below = "0 B" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
