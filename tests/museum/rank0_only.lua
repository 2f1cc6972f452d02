-- mistake: all_reduce on one rank only
-- happened: ranks that had logged a metric gathered it and waited forever for ranks that had
--   not
-- report: https://github.com/huggingface/trl/issues/7310
-- law: matching collectives
-- others: a watchdog, after its timeout; a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; rank 1 leaves one out
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local loss = prun.full({ 1 }, r.rank)
  if r.rank == 0 or not museum.wrong then prun.all_reduce(loss, "avg") end -- here
  if r.rank == 0 then prun.print("loss", loss) end
end)
