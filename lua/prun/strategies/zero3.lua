-- ZeRO stage 3, also known as fully sharded data parallelism: every rank keeps 1/N of the parameters, gradients and
-- optimizer state. A unit's parameters are gathered just before use and freed right after; its gradients are averaged
-- and scattered as soon as backward has computed them. (Rajbhandari et al. 2020, "ZeRO".)
--
-- With over = { "replicate", "shard" } the ranks of a group shard, and the groups are replicas (hybrid sharding).

local prun = require "prun"

return prun.strategy("zero3", {
  axis = { "dp", "mesh axis over which the batch and the parameters are split" },
  over = { { "" }, "two axes instead: the first one has groups of ranks, which are replicas; the second shards" },
  prefetch = { 1, "how many units are gathered ahead of compute", least = 0, most = 1000000 },
  inflight = { 1, "how many reductions of gradients may be unfinished behind backward", least = 1, most = 1000000 },
  bucket = { "unit", "gradients reduced at once: those of one unit", choices = { "unit" } },
  reshard_after_forward = { true, "free after forward; false: keep; group: keep its shard", choices = { "group" } },
  persist_below = { "0 B", "parameters smaller than this stay whole on every rank", least = 0 },
  wire = { "", "dtype that travels: f32 or bf16; empty: that of the data", choices = { "", "f32", "bf16" } },
  offload = { "", "optimizer: its state lives in the host's memory; empty: in the device's",
              choices = { "", "optimizer" } },
  offload_ahead = { 2, "pieces of that state on their way besides the one that is updated", least = 0, most = 1000000 },
  offload_piece = { "16 MiB", "size of a piece, of each of the optimizer's tensors", least = 64 },
}, function(unit, opt)
  if opt.reshard_after_forward == "group" then return require "prun.strategies.zero3_in_groups"(unit, opt) end
  local replicate, shard, full = opt.over[1], opt.over[2] or opt.axis
  local function gather()
    full = prun.all_gather(unit.params, { axis = shard, stream = "gather", prefetch = opt.prefetch, wire = opt.wire,
                                          keep = not opt.reshard_after_forward })
  end
  -- The unit's parameters as one padded vector, a piece on each rank.
  unit.params:flat { least = opt.persist_below }:place { [shard] = "S(0)" }

  unit:before("forward", function() prun.ensure(full, gather) end)
  unit:after("forward", function()
    if opt.reshard_after_forward then prun.free(full, { keep = unit.last }) end
  end)

  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = shard, op = "avg", into = unit.grad_shard, stream = "reduce",
                                      inflight = opt.inflight, bucket = opt.bucket, wire = opt.wire })
    if opt.persist_below > 0 then
      prun.all_reduce(unit.grads, { axis = shard, op = "avg", stream = "reduce", wire = opt.wire })
    end
    if replicate ~= "" then
      prun.all_reduce(unit.grad_shard, { axis = replicate, op = "avg", stream = "reduce", wire = opt.wire })
    end
  end)

  if opt.offload == "optimizer" then
    unit.optimizer:offload { ahead = opt.offload_ahead, piece = opt.offload_piece }
  end
end)
