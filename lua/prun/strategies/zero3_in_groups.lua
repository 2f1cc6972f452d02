-- zero3 with reshard_after_forward = "group" and over = { "node", "dp" }: both axes shard. A step gathers a unit over
-- `node` once, and each rank keeps that piece, 1/dp of the unit, until the unit's last backward; all other gathers are
-- of pieces, over `dp`. (`reshard_after_forward = 8` of PyTorch's FSDP2; hpZ in Wang et al. 2023, "ZeRO++".)
--
-- The first placement cuts the vector for `dp`, the second one its pieces for `node`, so that the ranks' shards are in
-- order in each gather and in each reduce-scatter.

local prun = require "prun"

return function(unit, opt)
  local node, dp = opt.over[1], opt.over[2]
  if not dp then host.fail 'reshard_after_forward = "group" needs two axes, over = { "node", "dp" }' end
  local pieces, full
  local function ensure()
    prun.ensure(pieces, function()
      pieces = prun.all_gather(unit.params, { axis = node, stream = "gather_pieces", wire = opt.wire, keep = true })
    end)
    prun.ensure(full, function()
      full = prun.all_gather(pieces, { axis = dp, stream = "gather", prefetch = opt.prefetch, wire = opt.wire })
    end)
  end
  local function scatter(gradients, axis)
    prun.reduce_scatter(gradients, { axis = axis, op = "avg", into = unit.grad_shard, stream = "reduce",
                                     inflight = opt.inflight, bucket = opt.bucket, wire = opt.wire })
  end
  unit.params:flat { least = opt.persist_below }:place { [dp] = "S(0)" }:place { [node] = "S(0)" }

  unit:before("forward", ensure)
  unit:after("forward", function() prun.free(full, { keep = unit.last }) end)

  unit:before("backward", ensure)
  unit:after("backward", function()
    prun.free(full)
    prun.free(pieces)
    scatter(unit.grads, dp)
    scatter(unit.grad_shard, node)
    for _, axis in ipairs(opt.persist_below > 0 and opt.over or {}) do
      prun.all_reduce(unit.grads, { axis = axis, op = "avg", stream = "reduce", wire = opt.wire })
    end
  end)

  if opt.offload == "optimizer" then
    unit.optimizer:offload { ahead = opt.offload_ahead, piece = opt.offload_piece }
  end
end
