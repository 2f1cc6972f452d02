-- mistake: missing all_reduce of a MoE block including its router
-- happened: the gradient of the replicated router was not reduced, so its weights drifted apart
--   from the first step on
-- report: https://github.com/pytorch/torchtitan/issues/2387
-- law: complete reductions
-- others: an SPMD type checker; a comparison of ranks' weights
-- ranks: 2
-- says: the gradients of 'block0' are never reduced over 'ep': each rank would train on its own
--   share of the batch
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "ep" }, function(unit, opt)
  local experts = unit:find { "moe.up", "moe.down" }
  for _, layer in ipairs(experts) do layer:place { [opt.axis] = "S(0)" } end
  unit:after("backward", function()
    if museum.wrong and #experts > 0 then return end -- experts are not reduced: each rank has its own
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" })
  end)
end)

return museum.plan {
  mesh = prun.mesh { ep = 2 }, model = prun.models.moe { layers = 1, width = 32, heads = 2, context = 16 },
  strategy = { mine {} }, -- here
}
