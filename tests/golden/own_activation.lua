-- An activation and a scale written with operators: one op in forward, and in backward one for each gradient.
local prun = require "prun"
local nn = prun.nn

return prun.plan {
  mesh = prun.mesh { dp = 1 },
  model = function(batch)
    local x = nn.linear("in", batch.x, 8)
    local y = x * nn.sigmoid(1.702 * x) * nn.parameter("gain", { 8 }, "ones") + 0.5
    return prun.losses.mse(y, batch.y)
  end,
  data = prun.data.random { batch = 4, inputs = 8, outputs = 8 },
  strategy = {},
  optimizer = prun.sgd { lr = 0.1 },
  steps = 1,
}
