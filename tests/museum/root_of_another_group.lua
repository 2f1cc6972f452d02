-- mistake: broadcast root in world numbering inside a group
-- happened: a broadcast in a group received a group rank instead of a world rank, so it worked in
--   the first group only
-- report: https://github.com/OpenPipe/ART/issues/919
-- law: ranges
-- others: a test with two groups
-- ranks: 4
-- says: prun.broadcast: the root must be a rank of the group, 0 to 1, not 2
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local state = prun.full({ 4 }, r.rank)
  prun.broadcast(state, museum.wrong and 2 * r.dp or 0, { axis = "tp" }) -- here
  prun.print(state)
end, { mesh = prun.mesh { dp = 2, tp = 2 } })
