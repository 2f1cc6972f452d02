-- mistake: missing free after forward
-- happened: gathered parameters of one model were not resharded after forward, so memory
--   grew
-- report: https://github.com/pytorch/pytorch/issues/149029
-- law: slots
-- others: a memory profile
-- ranks: 2
-- says: the all_gather of block1 cannot be issued: the next of its 2 slots is taken by embed
--   (gathered at here, never freed)
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local full
  local function gather()
    full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", prefetch = 1 }) -- here
  end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() if not museum.wrong then prun.free(full) end end)
  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
  end)
end)

return museum.plan { strategy = { mine {} } }
