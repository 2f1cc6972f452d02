-- mistake: all_reduce over replicas before reduce_scatter over shards
-- happened: hybrid sharding all-reduced full gradients between hosts, then scattered them inside
--   hosts: as many times the bytes as there are shards
-- report: https://github.com/pytorch/pytorch/pull/84590
-- law: order of reductions
-- others: a count of the bytes sent
-- ranks: 4
-- says: the gradients of 'head' are all-reduced over 'replicate' before they are scattered over
--   'dp': call prun.reduce_scatter first
local prun, museum = require "prun", require "museum"

local hybrid = prun.strategy("hybrid", { axis = { "dp", "shards" }, over = { "replicate", "dp" } }, function(unit)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = "dp" }) end
  unit.params:flat():place { dp = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", gather)
  unit:after("backward", function()
    prun.free(full)
    local function sum() prun.all_reduce(unit.grad_shard, { axis = "replicate" }) end -- here
    if museum.wrong then sum() end
    prun.reduce_scatter(unit.grads, { axis = "dp", into = unit.grad_shard })
    if not museum.wrong then sum() end
  end)
end)
return museum.plan { mesh = prun.mesh { replicate = 2, dp = 2 }, strategy = { hybrid {} } }
