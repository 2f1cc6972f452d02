-- mistake: all_reduce of f64 on one rank, of f32 on the others
-- happened: the dtype of a metric was inferred: a numpy value made it f64 on some ranks, and the
--   job hung
-- report: https://github.com/modelscope/ms-swift/pull/9551
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they differ in dtype
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local sum = prun.full({ 2 }, r.rank, { dtype = museum.wrong and r.rank == 1 and "f64" or "f32" })
  prun.all_reduce(sum, "sum") -- here
  prun.print(sum)
end)
