-- mistake: missing free after backward
-- happened: a hook that frees parameters after backward was not called for modules without
--   parameter gradients
-- report: https://github.com/pytorch/pytorch/issues/83129
-- law: slots
-- others: a memory profile
-- ranks: 2
-- says: the all_gather of block0 cannot be issued: its only slot is taken by block1 (gathered at
--   here, never freed)
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end -- here
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", gather)
  unit:after("backward", function()
    if not (museum.wrong and unit.name == "block") then prun.free(full) end
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
  end)
end)

return museum.plan { strategy = { mine {} } }
