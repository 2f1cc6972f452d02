-- ZeRO stage 1 (Rajbhandari et al. 2020): only the optimizer state is split over the ranks. Gradients are summed whole
-- over the microbatches of a step and scattered in the last one; each rank updates its piece of the parameters, and
-- these are gathered while the next forward pass begins.

local prun = require "prun"

return prun.strategy("zero1", {
  axis = { "dp", "mesh axis over which the batch is split" },
  wire = { "", "dtype of gradients that travels: f32 or bf16; empty: their own", choices = { "", "f32", "bf16" } },
}, function(unit, opt)
  local full
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit.grads:accumulate()

  unit:before("forward", function()
    prun.ensure(full, function()
      full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", keep = true })
    end)
  end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce",
                                      wire = opt.wire })
  end)
end)
