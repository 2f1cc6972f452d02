-- ZeRO stage 3, also known as fully sharded data parallelism: every rank keeps 1/N of the parameters, gradients and
-- optimizer state. A unit's parameters are gathered just before use and freed right after; its gradients are averaged
-- and scattered as soon as backward has computed them. (Rajbhandari et al. 2020, "ZeRO".)
--
-- With over = { "replicate", "shard" } groups of ranks shard, and the groups are replicas (hybrid sharding). "group"
-- shards over both axes, and keeps the shards of a group, gathered over the first axis once a step, until backward.

local prun = require "prun"

return prun.strategy("zero3", {
  axis = { "dp", "mesh axis over which the batch and the parameters are split" },
  over = { { "" }, "two axes instead: of groups of ranks, which are replicas, and of the ranks of a group" },
  prefetch = { 1, "how many units are gathered ahead of compute", least = 0, most = 1000000 },
  inflight = { 1, "how many reductions of gradients may be unfinished behind backward", least = 1, most = 1000000 },
  bucket = { "unit", "gradients reduced at once: those of one unit", choices = { "unit" } },
  reshard_after_forward = { true, "free parameters after forward; false: after backward; group: in groups of `over`",
                            choices = { "group" } },
  persist_below = { "0 B", "parameters smaller than this stay whole on every rank", least = 0 },
  wire = { "", "dtype that travels: f32 or bf16; empty: that of the data", choices = { "", "f32", "bf16" } },
  offload = { "", "optimizer: its state lives in the host's memory; empty: in the device's",
              choices = { "", "optimizer" } },
  offload_ahead = { 2, "pieces of that state on their way besides the one that is updated", least = 0, most = 1000000 },
  offload_piece = { "16 MiB", "size of a piece, of each of the optimizer's tensors", least = 64 },
}, function(unit, opt)
  local outer, shard, nested = opt.over[1], opt.over[2] or opt.axis, opt.reshard_after_forward == "group"
  if nested and outer == "" then
    host.fail('reshard_after_forward = "group" needs two axes, over = { "node", "dp" }',
      host.site_of_word(host.site("user"), "reshard_after_forward"))
  end
  local pieces, full
  local function ensure()
    if nested then
      prun.ensure(pieces, function()
        pieces = prun.all_gather(unit.params, { axis = outer, stream = "gather_outer", wire = opt.wire, keep = true })
      end)
    end
    prun.ensure(full, function()
      full = prun.all_gather(pieces or unit.params, { axis = shard, stream = "gather", prefetch = opt.prefetch,
                                                      wire = opt.wire, keep = not opt.reshard_after_forward })
    end)
  end
  local function scatter(gradients, axis)
    prun.reduce_scatter(gradients, { axis = axis, op = "avg", into = unit.grad_shard, stream = "reduce",
                                     inflight = opt.inflight, bucket = opt.bucket, wire = opt.wire })
  end
  local function reduce(gradients, axis)
    prun.all_reduce(gradients, { axis = axis, op = "avg", stream = "reduce", wire = opt.wire })
  end
  -- The unit's parameters as one padded vector, a piece on each rank.
  local placed = unit.params:flat { least = opt.persist_below }:place { [shard] = "S(0)" }
  if nested then placed:place { [outer] = "S(0)" } end

  unit:before("forward", ensure)
  unit:after("forward", function()
    if opt.reshard_after_forward then prun.free(full, { keep = unit.last }) end
  end)

  unit:before("backward", ensure)
  unit:after("backward", function()
    prun.free(full)
    scatter(unit.grads, shard)
    if opt.persist_below > 0 then reduce(unit.grads, shard) end
    if nested then prun.free(pieces) end
    if nested then scatter(unit.grad_shard, outer) end
    if nested and opt.persist_below > 0 then reduce(unit.grads, outer) end
    if outer ~= "" and not nested then reduce(unit.grad_shard, outer) end
  end)

  if opt.offload == "optimizer" then
    unit.optimizer:offload { ahead = opt.offload_ahead, piece = opt.offload_piece }
  end
end)
