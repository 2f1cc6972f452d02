-- mistake: free after forward without another gather for backward
-- happened: parameters were resharded while backward still needed them, if an input of a frozen
--   module had no gradient
-- report: https://github.com/pytorch/pytorch/issues/117510
-- law: lifetimes
-- others: a sanitizer of the allocator, if the memory is reused
-- ranks: 2
-- says: 'head.logits.weight' is freed here, before linear_dx at lua/prun/models/gpt.lua reads it
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end) -- here
  unit:before("backward", museum.wrong and function() end or gather)
  unit:after("backward", function()
    if not museum.wrong then prun.free(full) end
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
  end)
end)

return museum.plan { strategy = { mine {} } }
