-- prun check PLAN
local prun = require "prun"
local nn = prun.nn
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = function(batch)
    local x = batch.x
    for _ = 1, 2 do
      x = nn.unit("layer", function() return nn.linear("a", x, 8) end)
    end
    return prun.losses.mse(x, batch.y)
  end,
  data      = prun.data.random { batch = 2, inputs = 8, outputs = 8 },
  optimizer = prun.sgd { lr = 0.1 },
}
