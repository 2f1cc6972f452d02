-- mistake: a V-shaped schedule on round-robin stages
-- happened: the zero-bubble V schedule requested a stage from a rank that did not own it
-- report: https://github.com/pytorch/torchtitan/issues/774
-- law: matching messages
-- others: the first step
-- ranks: 2
-- says: messages differ: message 1 from rank 0 to rank 1 along world (lane 32): send and receive
--   differ in tag
local prun, museum = require "prun", require "museum"


local function order(rank, _, micro) -- rank 0 has the first and the last of four stages, rank 1 those between
  for i = 0, micro - 1 do
    prun.forward(i, 0)
    if rank == 1 then prun.forward(i, 1) end
  end
  for i = 0, micro - 1 do
    if rank == 0 then prun.forward(i, 1) end
    prun.backward(i, 1)
    if rank == 1 then prun.backward(i, 0) end
  end
  if rank == 1 then return end
  for i = 0, micro - 1 do prun.backward(i, 0) end
end
local mine = prun.schedule("mine", order, { chunks = 2, placement = museum.wrong and "round" or "v" })

return museum.plan {
  mesh = prun.mesh { pp = 2 }, model = museum.gpt { layers = 4 }, micro = 4,
  strategy = { prun.pipeline { schedule = mine } }, -- here
}
