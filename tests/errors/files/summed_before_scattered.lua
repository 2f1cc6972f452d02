-- Hybrid sharding with its two reductions in the wrong order.
local prun = require "prun"

return prun.strategy("hybrid", { axis = { "dp", "shards" }, over = { "cp", "dp" } }, function(unit)
  local full
  unit.params:flat():place { dp = "S(0)" }
  unit:before("forward", function()
    prun.ensure(full, function() full = prun.all_gather(unit.params, { axis = "dp", keep = true }) end)
  end)
  unit:after("backward", function()
    prun.free(full)
    prun.all_reduce(unit.grad_shard, { axis = "cp" })
    prun.reduce_scatter(unit.grads, { axis = "dp", into = unit.grad_shard })
  end)
end)
