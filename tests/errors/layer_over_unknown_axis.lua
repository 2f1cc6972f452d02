-- prun check PLAN --nproc 2
-- A layer is placed over an axis that is not there.
local prun = require "prun"

local wrong = prun.strategy("wrong", { axis = "dp" }, function(unit, opt)
  for _, layer in ipairs(unit:find "up") do layer:place { tq = "S(1)" } end
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end)

return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { wrong {} },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
