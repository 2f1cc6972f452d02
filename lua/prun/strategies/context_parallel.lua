-- Context parallelism: the tokens of each sample are split over ranks, and attention passes keys and values round a
-- ring (Liu et al. 2023, "Ring Attention"). Everything else works on tokens one by one. Each rank has all parameters,
-- or what another strategy leaves it, and their gradients are averaged.

local prun = require "prun"

return prun.strategy("context_parallel", {
  axis = { "cp", "mesh axis over which tokens are split" },
  bucket = { "25 MiB", "size of a bucket of gradients", least = 0 },
}, function(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce", bucket = opt.bucket })
  end)
end, { splits = "tokens" })
