-- mistake: missing backward_weight of the last microbatch
-- happened: weight gradients were deferred for a zero-bubble schedule, and other schedules never
--   computed them
-- report: https://github.com/deepspeedai/Megatron-DeepSpeed/issues/442
-- law: complete schedules
-- others: a comparison of gradients with another schedule
-- ranks: 2
-- says: the schedule mine: rank 0 never runs backward_weight of microbatch 3, chunk 0
local prun, museum = require "prun", require "museum"


local mine = prun.schedule("mine", function(_, _, micro) -- here
  for i = 0, micro - 1 do prun.forward(i) end
  for i = 0, micro - 1 do
    prun.backward_input(i)
    if i < micro - 1 or not museum.wrong then prun.backward_weight(i) end
  end
end)

return museum.plan { mesh = prun.mesh { pp = 2 }, micro = 4, strategy = { prun.pipeline { schedule = mine } } }
