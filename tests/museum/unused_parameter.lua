-- mistake: a parameter that does not reach the loss
-- happened: a wrapped module with an unused output never produced the gradients that the job waited
--   for
-- report: https://github.com/pytorch/pytorch/issues/83107
-- law: reach
-- others: an inspection of missing gradients after the first step
-- ranks: 2
-- says: parameter 'head.auxiliary.weight' does not reach the loss: it would never be trained
local prun, museum = require "prun", require "museum"


local nn = prun.nn

local function model(batch)
  local x = nn.unit("body", function() return nn.relu(nn.linear("in", batch.x, 16)) end)
  return nn.unit("head", function()
    local y, auxiliary = nn.linear("out", x, 4), nn.linear("auxiliary", x, 4) -- here
    return prun.losses.mse(museum.wrong and y or y + auxiliary, batch.y)
  end)
end

return museum.plan {
  model = model, data = prun.data.random { batch = 8, inputs = 16, outputs = 4 }, strategy = { prun.ddp {} },
}
