-- prun check PLAN --nproc 2
-- Nothing is sharded here.
local prun = require "prun"

local wrong = prun.strategy("wrong", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
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
