-- mistake: backward first on one rank, forward first on the next
-- happened: each of two ranks waited to send before it received the other's message
-- report: https://github.com/pytorch/pytorch/issues/172668
-- law: no wait cycle
-- others: a watchdog, after its timeout
-- ranks: 2
-- says: wait cycle across ranks: these wait for each other
local prun, museum = require "prun", require "museum"


local mine = prun.schedule("mine", function(rank, _, micro)
  if museum.wrong and rank == 0 then
    for i = 0, micro - 1 do
      prun.forward(i)
      prun.backward(i)
    end
  else
    for i = 0, micro - 1 do prun.forward(i) end
    for i = 0, micro - 1 do prun.backward(i) end
  end
end)

return museum.plan {
  mesh = prun.mesh { pp = 2 }, micro = 4,
  strategy = { prun.pipeline { schedule = mine } }, -- here
}
