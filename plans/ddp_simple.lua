-- Data parallelism with one parameter: w = 5, y = 7·w·x, and the loss is the mean of y.
-- Rank r has the sample x = r, so two ranks compute the gradients 0 and 7, and both continue with the average, 3.5.

local prun = require "prun"
local nn = prun.nn

-- Like prun.ddp, but each rank prints its gradient before and after the average.
local talkative_ddp = prun.strategy("talkative_ddp", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function()
    prun.print("gradient before averaging", unit.grads)
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" })
    prun.print("gradient after averaging", unit.grads)
  end)
end)

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = function(batch)
    local y = nn.unit("simple", function()
      return nn.scale(nn.linear("w", batch.x, 1, { bias = false, init = { "constant", 5 } }), 7)
    end)
    return prun.losses.mean(y)
  end,
  data      = prun.data.index { batch = prun.world },
  strategy  = { talkative_ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.01 },
  steps     = 1,
}
