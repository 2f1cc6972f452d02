-- mistake: missing all_reduce of the unsharded parameters next to the shards
-- happened: biases and norms were replicated along the axis that shards all other parameters, and
--   their gradients were not reduced
-- report: https://github.com/axonn-ai/axonn/pull/57
-- law: complete reductions
-- others: a parity run; a comparison of ranks' weights
-- ranks: 2
-- says: the gradients of 'block0.small' are never reduced over 'dp': each rank would train on its
--   own share of the batch
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt) -- biases and norms remain whole
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
  unit.params:flat { least = 2048 }:place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", gather)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
    if not museum.wrong then prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" }) end
  end)
end)

return museum.plan { strategy = { mine {} } } -- here
