-- mistake: second all_reduce of reduced gradients
-- happened: both the pipeline engine and ZeRO-2's hooks reduced the
--   gradients
-- report: https://github.com/deepspeedai/DeepSpeedExamples/issues/86
-- law: single reductions
-- others: a parity run with SGD, if the reduction sums
-- ranks: 2
-- says: the gradients of 'head' are reduced over 'dp' twice
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" })
    if museum.wrong then prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" }) end -- here
  end)
end)

return museum.plan { strategy = { mine {} } }
