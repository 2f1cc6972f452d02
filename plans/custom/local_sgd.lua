-- A strategy of one's own: local SGD. Each rank trains on its share of the batch; every k steps weights are averaged.

local prun = require "prun"

local local_sgd = prun.strategy("local_sgd", {
  axis = { "dp", "mesh axis over which the batch is split" },
  every = { 4, "steps between two averages", least = 1 },
}, function(unit, opt)
  -- No gradient is reduced: between the averages the ranks' weights drift apart.
  unit:every(opt.every, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
end, { differs = "weights drift between averages" })

local arg = prun.shared_args {
  every = { 4, "steps between two averages", least = 1 },
  lr    = { 0.1, "learning rate" },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { local_sgd { axis = "dp", every = arg.every } },
  optimizer = prun.sgd { lr = arg.lr },
  micro     = arg.micro, steps = arg.steps, seed = arg.seed, dtype = arg.dtype, reduce = arg.reduce,
}
