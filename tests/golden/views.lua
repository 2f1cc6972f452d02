-- Views that an op reads with strides, and one that remains a copy.
local prun = require "prun"
local nn = prun.nn

return prun.plan {
  mesh = prun.mesh { dp = 1 },
  model = function(batch)
    local gate, value = nn.split(nn.linear("in", batch.x, 16), 8, 1)
    local y = nn.sigmoid(gate) * value
    local heads = y:unflatten(1, { 2, 4 }):transpose(1, 2)
    local scale = nn.parameter("scale", { 4, 1 }, "ones"):expand { 4, 2 }
    return prun.losses.mse((heads * scale):transpose(1, 2):flatten(1), batch.y)
  end,
  data = prun.data.random { batch = 4, inputs = 8, outputs = 8 },
  strategy = {},
  optimizer = prun.sgd { lr = 0.1 },
  steps = 1,
}
