-- mistake: all_gather of sizes that differ between ranks
-- happened: with another number of rows on each rank an all_gather hangs, or returns other ranks'
--   data shifted
-- report: https://github.com/pytorch/xla/issues/8660
-- law: one call for all
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they differ in count
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local rows = prun.full({ museum.wrong and 4 + r.rank or 5 }, 1)
  prun.print(prun.all_gather(rows)) -- here
end)
