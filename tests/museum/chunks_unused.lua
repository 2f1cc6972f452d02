-- mistake: two stages per rank under a schedule that runs one
-- happened: the schedule ignored that two model chunks were configured, so the second half of the
--   model received the activations of the first
-- report: https://github.com/hpcaitech/ColossalAI/issues/3187
-- law: complete schedules
-- others: the first step, where shapes differ
-- ranks: 2
-- says: the schedule 1f1b has one chunk a rank, not 2; interleaved has several
local prun, museum = require "prun", require "museum"


local schedule = museum.wrong and "1f1b" or "interleaved"
return museum.plan {
  mesh = prun.mesh { pp = 2 }, model = museum.gpt { layers = 4 }, micro = 4,
  strategy = { prun.pipeline { schedule = schedule, chunks = 2 } }, -- here
}
