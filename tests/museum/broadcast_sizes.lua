-- mistake: broadcast with different sizes on ranks
-- happened: ranks modified the model differently before the broadcast, so their flat tensors had
--   different lengths
-- report: https://github.com/EchoseChen/SPA-VL-RLHF/issues/2
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they differ in count
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local weights = prun.full({ museum.wrong and r.rank == 1 and 38 or 33 }, r.rank)
  prun.broadcast(weights, 0) -- here
  prun.print(weights)
end)
