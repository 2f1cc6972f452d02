-- mistake: all_gather with different sizes on ranks
-- happened: with different numbers of rows an all_gather hangs or returns shifted
--   data
-- report: https://github.com/pytorch/xla/issues/8660
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they differ in count
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local rows = prun.full({ museum.wrong and 4 + r.rank or 5 }, 1)
  prun.print(prun.all_gather(rows)) -- here
end)
