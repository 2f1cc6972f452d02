-- Text with escape sequences that would change the colour of the terminal.
local prun = require "prun"
local nn = prun.nn

local loud = prun.strategy("loud", { axis = "dp" }, function(unit)
  unit:after("backward", function() prun.print("\27[31mred", unit.grads) end)
end)

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = function(batch)
    local y = nn.unit("simple", function() return nn.linear("w", batch.x, 1, { bias = false }) end)
    return prun.losses.mean(y)
  end,
  data      = prun.data.index { batch = prun.world },
  strategy  = { loud { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 1,
}
