-- Expert parallelism (Lepikhin et al. 2020, "GShard"): a layer's experts are distributed over ranks that also split the
-- batch. Tokens are sent to their experts and back. All other parameters are replicated on these ranks, and their
-- gradients are averaged.
--
-- An axis of another strategy (dp, cp, tp) has the experts, too, if this one names it; the other strategy then handles
-- all other parameters as without experts ("folding").

local prun = require "prun"

return prun.strategy("expert_parallel", {
  axis = { "ep", "mesh axis over which experts and the batch are split, or another strategy's axis" },
  over = { { "" }, "two axes instead, over whose ranks together the experts are split" },
  experts = { { "moe.gate", "moe.up", "moe.down" }, "layers whose first dim is the experts" },
  bucket = { "25 MiB", "size of a bucket of gradients", least = 0 },
}, function(unit, opt)
  for _, axis in ipairs(opt.over[2] and opt.over or { opt.axis }) do
    for _, layer in ipairs(unit:find(opt.experts)) do layer:place { [axis] = "S(0)" } end

    unit:after("backward", function()
      if unit:shares(axis) then return end
      prun.all_reduce(unit.grads, { axis = axis, op = "avg", stream = "reduce", bucket = opt.bucket })
    end)
  end
end, { shares = true, needs = "experts (nn.moe); prun.ddp splits only the batch" })
