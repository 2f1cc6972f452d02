-- mistake: two units with the same name
-- happened: of two layers with the same name, the first received the saved weights of both and the
--   second kept its random ones
-- report: https://github.com/BVLC/caffe/issues/7043
-- law: names
-- others: a count of the parameters
-- ranks: 2
-- says: there is a unit 'layer1' already (nn.again runs it once more, with the same parameters)
local prun, museum = require "prun", require "museum"


local nn = prun.nn

local function model(batch)
  local x = nn.unit("layer1", function() return nn.relu(nn.linear("in", batch.x, 16)) end)
  x = nn.unit(museum.wrong and "layer1" or "layer2", function() return nn.relu(nn.linear("in", x, 16)) end) -- here
  return nn.unit("head", function() return prun.losses.mse(nn.linear("out", x, 4), batch.y) end)
end

return museum.plan {
  model = model, data = prun.data.random { batch = 8, inputs = 16, outputs = 4 }, strategy = { prun.ddp {} },
}
