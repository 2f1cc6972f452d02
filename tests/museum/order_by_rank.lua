-- mistake: all_reduces in a different order on one rank
-- happened: metrics with different keys, or the same keys in a different order, were reduced in
--   that order and hung
-- report: https://github.com/Lightning-AI/pytorch-lightning/issues/19106
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they are the same ones in another order
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local scores = { prun.full({ 4 }, 1), prun.full({ 8 }, 2) }
  if museum.wrong and r.rank == 1 then scores[1], scores[2] = scores[2], scores[1] end
  for _, score in ipairs(scores) do prun.all_reduce(score, "sum") end -- here
  prun.print(scores[1], scores[2])
end)
