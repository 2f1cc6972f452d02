-- Data parallelism: every rank has all parameters and computes the gradients of its share of the batch; buckets of them
-- are averaged while backward still runs. (Li et al. 2020, "PyTorch Distributed".)

local prun = require "prun"

return prun.strategy("ddp", {
  axis = { "dp", "mesh axis over which the batch is split" },
  bucket = { "25 MiB", "size of a bucket of gradients", least = 0 },
  first = { "1 MiB", "size of the first bucket and limit of the last: they start and end early", least = 0 },
  offload = { "", "optimizer: its state lives in the host's memory; empty: in the device's",
              choices = { "", "optimizer" } },
  offload_ahead = { 2, "pieces of that state on their way besides the one that is updated", least = 0, most = 1000000 },
  offload_piece = { "16 MiB", "size of a piece, of each of the optimizer's tensors", least = 64 },
}, function(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce",
                                  bucket = opt.bucket, first = opt.first })
  end)

  if opt.offload == "optimizer" then
    unit.optimizer:offload { ahead = opt.offload_ahead, piece = opt.offload_piece }
  end
end)
