-- ZeRO stage 2 (Rajbhandari et al. 2020): gradients and optimizer state are sharded. Each rank updates its shard of the
-- parameters; they are gathered once per step, while the forward pass starts, and kept until backward has read them.
-- Gradients of other ranks' shards are freed as soon as they are reduced.

local prun = require "prun"

return prun.strategy("zero2", {
  axis = { "dp", "mesh axis over which the batch is split" },
  inflight = { 1, "how many reductions of gradients may be unfinished behind backward", least = 1, most = 1000000 },
  wire = { "", "dtype of gradients that travels: f32 or bf16; empty: their own", choices = { "", "f32", "bf16" } },
  offload = { "", "optimizer: its state lives in the host's memory; empty: in the device's",
              choices = { "", "optimizer" } },
  offload_ahead = { 2, "pieces of that state on their way besides the one that is updated", least = 0, most = 1000000 },
  offload_piece = { "16 MiB", "size of a piece, of each of the optimizer's tensors", least = 64 },
}, function(unit, opt)
  local full
  unit.params:flat():place { [opt.axis] = "S(0)" }

  unit:before("forward", function()
    prun.ensure(full, function()
      full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", keep = true })
    end)
  end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce",
                                      inflight = opt.inflight, wire = opt.wire })
  end)

  if opt.offload == "optimizer" then
    unit.optimizer:offload { ahead = opt.offload_ahead, piece = opt.offload_piece }
  end
end)
