-- Expert parallelism (Lepikhin et al. 2020, "GShard"): a layer's experts are distributed over ranks that also split the
-- batch. Tokens are sent to their experts and back. All other parameters are replicated on these ranks, and their
-- gradients are averaged.

local prun = require "prun"

return prun.strategy("expert_parallel", {
  axis = { "ep", "mesh axis over which experts and the batch are split" },
  experts = { { "moe.gate", "moe.up", "moe.down" }, "layers whose first dim is the experts" },
  bucket = { "25 MiB", "size of a bucket of gradients", least = 0 },
}, function(unit, opt)
  for _, layer in ipairs(unit:find(opt.experts)) do layer:place { [opt.axis] = "S(0)" } end

  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce", bucket = opt.bucket })
  end)
end, { needs = "experts (nn.moe); prun.ddp splits only the batch" })
