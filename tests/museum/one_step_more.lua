-- mistake: one more all_reduce on a rank with more batches
-- happened: ranks with fewer batches left, and the others waited for them in the next gradient
--   reduction
-- report: https://github.com/pytorch/pytorch/issues/33148
-- law: matching collectives
-- others: a watchdog, after its timeout
-- ranks: 2
-- says: collectives differ: the 4th collective along world (lane 0) is not the same on ranks 0 and
--   1; rank 0 leaves one out
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  for batch = 1, museum.wrong and 3 + r.rank or 3 do
    prun.all_reduce(prun.full({ 1 }, batch), "avg") -- here
  end
end)
