-- Context parallelism: the tokens of each sample are split over ranks, and attention passes keys and values around a
-- ring (Liu et al. 2023, "Ring Attention"). All other ops are local to a token. Each rank has all parameters, unless
-- another strategy shards them, and gradients are averaged.

local prun = require "prun"

return prun.strategy("context_parallel", {
  axis = { "cp", "mesh axis over which tokens are split" },
  share = { "zigzag", "a rank's tokens: zigzag, a chunk from each end; documents: chunks whose attention inside " ..
            "documents costs the same, for packed data", choices = { "zigzag", "documents" } },
  bucket = { "25 MiB", "size of a bucket of gradients", least = 0 },
}, function(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce", bucket = opt.bucket })
  end)
end, { splits = "tokens" })
