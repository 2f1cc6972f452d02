-- mistake: backward of the last microbatch only
-- happened: every microbatch was treated as the last one and cleared
--   the accumulated gradients, so only one contributed to the
--   update
-- report: https://github.com/NVIDIA/Megatron-LM/pull/7186
-- law: complete schedules
-- others: a parity run against one large batch
-- ranks: 2
-- says: the schedule mine: rank 0 never runs backward of microbatch 0, chunk 0
local prun, museum = require "prun", require "museum"

local mine = prun.schedule("mine", function(_, _, micro) -- here
  for i = 0, micro - 1 do prun.forward(i) end
  for i = museum.wrong and micro - 1 or 0, micro - 1 do prun.backward(i) end
end)

return museum.plan { mesh = prun.mesh { pp = 2 }, micro = 4, strategy = { prun.pipeline { schedule = mine } } }
