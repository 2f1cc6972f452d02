-- prun check PLAN --nproc 2
local prun = require "prun"
local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { op = "avg" })
  end)
end)
return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8 },
  data      = prun.data.random { batch = 2 },
  strategy  = { mine { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
}
