-- prun check PLAN
-- A weight that no op uses would never be trained.
local prun = require "prun"
local nn = prun.nn

local forgetful = prun.model("forgetful", {}, function(_, batch)
  return nn.unit("only", function()
    nn.parameter("spare", { 4, 4 }, { "normal", 0.02 })
    return prun.losses.mean_square(nn.linear("used", batch.x, 4))
  end)
end)

return prun.plan {
  mesh      = prun.mesh {},
  model     = forgetful {},
  data      = prun.data.random { batch = 8, inputs = 4, outputs = 4 },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 1,
}
