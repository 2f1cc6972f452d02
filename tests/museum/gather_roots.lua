-- mistake: gather to a root that differs within a group
-- happened: some callers numbered the destination within the group, others within the world, which
--   failed with more than one pipeline stage
-- report: https://github.com/vllm-project/vllm/pull/2530
-- law: matching collectives
-- others: a test with two groups
-- ranks: 4
-- says: collectives differ: the 1st collective along world (lane 0) is not the same on ranks 0 and
--   2; they differ in root
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local logits = prun.full({ 4 }, r.rank)
  prun.gather(logits, museum.wrong and r.rank // 2 or 0) -- here
end)
