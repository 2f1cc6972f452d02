-- Phases every 1,000 steps, in a run of 4 steps.
local prun = require "prun"
local arg = prun.args { what = "average" }

local average = prun.strategy("average", { axis = "dp" }, function(unit, opt)
  unit:every(1000, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
end)

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 8, outputs = 8, width = 8 },
  data      = prun.data.random { batch = 8 },
  strategy  = { arg.what == "average" and average {} or prun.ddp {} },
  optimizer = prun.sgd { lr = 0.1 },
  eval      = arg.what == "eval" and prun.eval { every = 1000 } or nil,
  report    = arg.what == "report" and { every = 1000 } or nil,
  steps     = 4,
}
