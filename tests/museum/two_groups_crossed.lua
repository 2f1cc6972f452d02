-- mistake: two groups of the same ranks in a different order on one rank
-- happened: the collectives of two communicators over the same ranks were launched in opposite
--   orders, which hung sometimes
-- report: https://github.com/ROCm/aorta/issues/512
-- law: matching collectives
-- others: a debug wrapper that compares calls over all groups
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they are the same ones in another order
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local x, y = prun.full({ 4 }, 1), prun.full({ 8 }, 2)
  local function first() prun.all_reduce(x, "sum", { axis = "world" }) end -- here
  local function second() prun.all_reduce(y, "sum", { axis = "dp" }) end
  if museum.wrong and r.rank == 1 then first, second = second, first end
  first()
  second()
  prun.print(x, y)
end, { mesh = prun.mesh { dp = 2 } })
