-- mistake: missing all_reduce on one pipeline stage
-- happened: with 1F1B and data parallelism a pipeline rank never reached the line that synchronizes
--   its gradients
-- report: https://github.com/huggingface/picotron/pull/5
-- law: complete reductions
-- others: a comparison of ranks' weights
-- ranks: 4
-- says: the gradients of 'head' are never reduced over 'dp': each rank would train on its own share
--   of the batch
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function()
    if museum.wrong and unit.name == "head" then return end -- the last stage's
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" })
  end)
end)

return museum.plan {
  mesh = prun.mesh { pp = 2, dp = 2 }, micro = 2,
  strategy = { prun.pipeline {}, mine {} }, -- here
}
