-- mistake: broadcast on one rank, all_reduce on the others
-- happened: one rank broadcast the name of a checkpoint while another still reduced
--   gradients
-- report: https://github.com/speechbrain/speechbrain/issues/2401
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; rank 0 leaves one out
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local x = prun.full({ 4 }, r.rank)
  if museum.wrong and r.rank == 1 then prun.broadcast(x, 0) end
  prun.all_reduce(x, "sum") -- here
  prun.print(x)
end)
