-- mistake: all_reduce over the experts' axis with sum instead of average
-- happened: the experts' axis also splits the batch, so its gradients must be averaged; the
--   division was missing
-- report: https://github.com/NVIDIA/Megatron-LM/pull/5956
-- law: scale
-- others: a parity run with SGD
-- ranks: 2
-- says: placement: all_reduce f32[8256] sum (head backward, compute, here) adds over ep what each
--   rank has scaled for an average, so op must be 'avg'; linear_dw (head backward, compute,
--   lua/prun/models/moe.lua) wrote it
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "ep" }, function(unit, opt)
  for _, layer in ipairs(unit:find { "moe.up", "moe.down" }) do layer:place { [opt.axis] = "S(0)" } end
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = museum.wrong and "sum" or "avg" }) -- here
  end)
end)

return museum.plan {
  mesh = prun.mesh { ep = 2 }, model = prun.models.moe { layers = 1, width = 32, heads = 2, context = 16 },
  strategy = { mine {} },
}
