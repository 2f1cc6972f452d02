-- prun check PLAN
local prun = require "prun"
local nn = prun.nn
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = function(batch)
    local y = nn.linear("a", batch.x, 16, {
      blocks = { 8, 4 },
    })
    return prun.losses.mse(y, batch.y)
  end,
  data      = prun.data.random { batch = 2, inputs = 8, outputs = 16 },
  optimizer = prun.sgd { lr = 0.1 },
}
