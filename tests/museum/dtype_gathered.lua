-- mistake: all_gather of bf16 on one rank, of f32 on the others
-- happened: the dtype of a metric depended on the code path that a rank's batch had taken
-- report: https://github.com/modelscope/ms-swift/issues/3955
-- law: matching collectives
-- others: a debug wrapper that compares calls
-- ranks: 2
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   1; they differ in dtype
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local score = prun.full({ 1 }, r.rank, { dtype = museum.wrong and r.rank == 0 and "bf16" or "f32" })
  prun.print(prun.all_gather(score)) -- here
end)
