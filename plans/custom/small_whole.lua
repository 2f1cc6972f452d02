-- A strategy of one's own: parameters below a size are replicated, all others are sharded as in ZeRO-3.

local prun = require "prun"

local small_whole = prun.strategy("small_whole", {
  axis = { "dp", "mesh axis over which the batch and the large parameters are split" },
  below = { "8 KiB", "parameters smaller than this stay whole" },
}, function(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", prefetch = 1 }) end
  unit.params:flat { least = opt.below }:place { [opt.axis] = "S(0)" }

  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full, { keep = unit.last }) end)
  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function()
    prun.free(full)
    -- Each call reduces the gradients with the placement that it supports: shards, or whole ones.
    prun.reduce_scatter(unit.grads, { axis = opt.axis, into = unit.grad_shard, stream = "reduce" })
    prun.all_reduce(unit.grads, { axis = opt.axis, stream = "reduce" })
  end)
end)

local arg = prun.shared_args { below = { "8 KiB", "parameters smaller than this stay whole" } }

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { small_whole { axis = "dp", below = arg.below } },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro, steps = arg.steps, seed = arg.seed, dtype = arg.dtype, reduce = arg.reduce,
}
