-- 2 ranks
-- A zero after context_parallel was refused; the compiler orders reductions.
local prun = require "prun"
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
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "cp", 2 }, { "dp", 1 } }),
  model = prun.models.gpt { heads = 1, layers = 1, context = 4, vocab = 16, width = 18 },
  data = prun.data.tokens { path = "ids.bin", batch = 1 },
  strategy = arg.alone and {} or {
    prun.context_parallel { axis = "cp" },
    small_whole { axis = "dp" },
  },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 1, steps = 1, seed = 0, dtype = "f64",
}
