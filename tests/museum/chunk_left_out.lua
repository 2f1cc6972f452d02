-- mistake: layers that no slot of the schedule runs
-- happened: 30 layers over 4 pipeline stages became 28 (7 per stage) without a
--   warning
-- report: https://github.com/NVIDIA/Megatron-LM/issues/1304
-- law: complete schedules
-- others: a parameter count; a parity run
-- ranks: 2
-- says: the schedule mine: rank 0 never runs forward of microbatch 0, chunk 1
local prun, museum = require "prun", require "museum"

local mine = prun.schedule("mine", function(_, _, micro, chunks) -- here
  local last = museum.wrong and chunks - 2 or chunks - 1
  for c = 0, last do
    for i = 0, micro - 1 do prun.forward(i, c) end
  end
  for c = last, 0, -1 do
    for i = 0, micro - 1 do prun.backward(i, c) end
  end
end, { chunks = 2 })

return museum.plan {
  mesh = prun.mesh { pp = 2 }, model = museum.gpt { layers = 4 }, micro = 4,
  strategy = { prun.pipeline { schedule = mine } },
}
