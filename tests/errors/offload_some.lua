-- prun check PLAN --nproc 2
local prun = require "prun"

local wrong = prun.strategy("wrong", { axis = "dp" }, function(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
  if unit.name == "block" then unit.optimizer:offload { ahead = 1 } end
end)

return prun.plan {
  mesh      = prun.mesh { dp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { wrong {} },
  optimizer = prun.adamw { lr = 0.1 },
}
