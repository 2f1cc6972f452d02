-- mistake: reduce_scatter with sum instead of average
-- happened: gloo has no average; sharded gradients were summed and never divided, without a warning
-- report: https://github.com/pytorch/pytorch/issues/162338
-- law: scale
-- others: a parity run with SGD (AdamW hides a constant factor)
-- ranks: 2
-- says: placement: reduce_scatter f32[4128] sum (head backward, compute, here) adds over dp what
--   each rank has scaled for an average, so op must be 'avg'; linear_dw (head backward,
--   compute, lua/prun/models/gpt.lua) wrote it
local prun, museum = require "prun", require "museum"

local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  museum.gathered(unit, opt)
  unit:after("backward", function()
    local op = museum.wrong and "sum" or "avg"
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = op, into = unit.grad_shard }) -- here
  end)
end)

return museum.plan { strategy = { mine {} } }
