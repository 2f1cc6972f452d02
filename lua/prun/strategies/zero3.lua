-- ZeRO stage 3, also known as fully sharded data parallelism: every rank keeps 1/N of the parameters, gradients and
-- optimizer state. A unit's parameters are gathered just before it needs them and freed right after; its gradients are
-- averaged and scattered as soon as backward has made them. (Rajbhandari et al. 2020, "ZeRO".)

local prun = require "prun"

return prun.strategy("zero3", {
  axis = { "dp", "mesh axis over which the batch and the parameters are split" },
  prefetch = { 1, "how many units are gathered ahead of compute", least = 0 },
  inflight = { 1, "how many reductions of gradients may be unfinished behind backward", least = 1 },
  bucket = { "unit", "gradients reduced at once: those of one unit", choices = { "unit" } },
}, function(unit, opt)
  local full
  local function gather()
    full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", prefetch = opt.prefetch })
  end
  unit.params:flat():place { [opt.axis] = "S(0)" }  -- the unit's parameters as one padded vector, a piece on each rank

  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full, { keep = unit.last }) end)

  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce",
                                      inflight = opt.inflight, bucket = opt.bucket })
  end)
end)
