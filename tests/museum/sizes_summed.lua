-- mistake: all_reduce with different sizes on ranks
-- happened: NCCL hangs for some pairs of sizes, and returns a wrong tail of the sum for others
-- report: https://github.com/NVIDIA/nccl/issues/1417
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they differ in count
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local counts = prun.full({ museum.wrong and r.rank == 1 and 6 or 4 }, 1)
  prun.all_reduce(counts, "sum") -- here
  prun.print(counts)
end)
