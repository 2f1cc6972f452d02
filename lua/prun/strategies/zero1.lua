-- ZeRO stage 1 (Rajbhandari et al. 2020): only the optimizer state is sharded. Whole gradients accumulate over the
-- microbatches of a step and are reduce-scattered in the last one. Each rank updates its shard of the parameters, which
-- are gathered while other updates and the start of the next forward pass run.

local prun = require "prun"

return prun.strategy("zero1", {
  axis = { "dp", "mesh axis over which the batch is split" },
  wire = { "", "dtype of gradients that travels: f32 or bf16; empty: their own", choices = { "", "f32", "bf16" } },
  offload = { "", "optimizer: its state lives in the host's memory; empty: in the device's",
              choices = { "", "optimizer" } },
  offload_ahead = { 2, "pieces of that state on their way besides the one that is updated", least = 0, most = 1000000 },
  offload_piece = { "16 MiB", "size of a piece, of each of the optimizer's tensors", least = 64 },
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

  if opt.offload == "optimizer" then
    unit.optimizer:offload { ahead = opt.offload_ahead, piece = opt.offload_piece }
  end
end)
