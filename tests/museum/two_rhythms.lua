-- mistake: weights of some units averaged more often than others
-- happened: an averager with a period was called per parameter instead of per step, so the number
--   of parameters decided which one was averaged when
-- report: https://github.com/pytorch/pytorch/pull/74737
-- law: averaging
-- others: a comparison of ranks' weights
-- ranks: 2
-- says: weights are averaged every 4 steps here and every 2 elsewhere: a plan has one rhythm
local prun, museum = require "prun", require "museum"


local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  local steps = museum.wrong and unit.name == "head" and 4 or 2
  unit:every(steps, function()
    prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" })
  end)
end)

return museum.plan { steps = 8, strategy = { mine {} } } -- here
