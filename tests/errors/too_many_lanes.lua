-- prun check PLAN --nproc 2
-- Lanes behind those of streams and axes belong to messages of pipelines.
local prun = require "prun"

local wrong = prun.strategy("wrong", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function()
    for i = 1, 40 do
      prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce" .. i })
    end
  end)
end)

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { wrong { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
