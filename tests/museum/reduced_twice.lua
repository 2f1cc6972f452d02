-- mistake: all_reduce of gradients that are reduced already
-- happened: a pipeline's engine and ZeRO-2's hooks both reduced: the second met a gradient that was
--   reduced already
-- report: https://github.com/deepspeedai/DeepSpeedExamples/issues/86
-- law: sums once
-- others: a parity run with SGD, if sums are reduced twice
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
