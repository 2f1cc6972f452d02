-- prun check PLAN --nproc 2

local prun = require "prun"

local drifting = prun.strategy("drifting", { axis = { "dp", "mesh axis" } }, function(unit, opt)
  unit:every(2, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
end, { differs = "weights drift between averages" })

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp {},
  data      = prun.data.random { batch = 4 },
  strategy  = { drifting { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1, ema = 0.9 },
}
