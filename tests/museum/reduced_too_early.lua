-- mistake: all_reduce of gradients before backward has completed them
-- happened: the reduction of a bucket waited for the stream that issued it, but not for all streams
--   that wrote the bucket
-- report: https://github.com/deepspeedai/DeepSpeed/issues/8061
-- law: order of reductions
-- others: a sanitizer of races between streams; NaN
-- ranks: 2
-- says: unit:before("backward", ...) runs before backward has computed unit.grads: call
--   prun.all_reduce in unit:after("backward", ...)
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local function reduce()
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce" }) -- here
  end
  if museum.wrong then unit:before("backward", reduce) else unit:after("backward", reduce) end
end)

return museum.plan { strategy = { mine {} } }
