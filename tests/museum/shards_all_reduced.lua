-- mistake: all_reduce of sharded gradients
-- happened: a ZeRO-1 example all-reduced full gradients on every rank, as without
--   sharding
-- report: https://github.com/deepspeedai/DeepSpeed/issues/823
-- law: shards
-- others: a count of the bytes sent
-- ranks: 2
-- says: all_reduce of sharded gradients: 'head' is placed S(0) on 'dp'; use reduce_scatter, and
--   all_reduce of unit.grad_shard over another axis
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  museum.gathered(unit, opt)
  unit:after("backward", function()
    if museum.wrong then prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" }) end -- here
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
  end)
end)

return museum.plan { strategy = { mine {} } }
