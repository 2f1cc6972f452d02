-- mistake: free before the last use
-- happened: resharding freed the full parameter before it redirected the views of
--   it
-- report: https://github.com/pytorch/pytorch/pull/94859
-- law: lifetimes
-- others: a sanitizer of the allocator, if it samples that moment
-- ranks: 2
-- says: 'embed.token.weight' is freed here, before embedding at lua/prun/models/gpt.lua reads it
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  if museum.wrong then unit:before("forward", function() prun.free(full) end) end -- here
  unit:after("forward", function() if not museum.wrong then prun.free(full) end end)
  unit:before("backward", gather)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
  end)
end)

return museum.plan { strategy = { mine {} } }
