-- mistake: missing all_gather before a unit's forward
-- happened: gathers started in another order than forward, so a layer used the weights of the
--   previous step
-- report: https://github.com/NVIDIA/Megatron-LM/issues/950
-- law: lifetimes
-- others: a parity run
-- ranks: 2
-- says: the parameters of 'block0' are sharded here, but no hook gathers them before layernorm at
--   lua/prun/models/gpt.lua reads 'block0.ln1.weight'
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
  unit.params:flat():place { [opt.axis] = "S(0)" } -- here
  if not (museum.wrong and unit.name == "block") then
    unit:before("forward", gather)
    unit:after("forward", function() prun.free(full) end)
  end
  unit:before("backward", gather)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
  end)
end)

return museum.plan { strategy = { mine {} } }
