-- mistake: backward of microbatches in a different order on one rank
-- happened: with several microbatches a send could overtake another and pair with its receive,
--   which caused a hang
-- report: https://github.com/pytorch/PiPPy/pull/610
-- law: matching messages
-- others: a test on real ranks, where sizes differ or tags are compared
-- ranks: 2
-- says: messages differ: message 0 from rank 1 to rank 0 along world (lane 33): send and receive
--   differ in tag
local prun, museum = require "prun", require "museum"

local mine = prun.schedule("mine", function(rank, _, micro)
  for i = 0, micro - 1 do prun.forward(i) end
  for i = 0, micro - 1 do
    prun.backward(museum.wrong and rank == 1 and micro - 1 - i or i)
  end
end)

return museum.plan {
  mesh = prun.mesh { pp = 2 }, micro = 4,
  strategy = { prun.pipeline { schedule = mine } }, -- here
}
