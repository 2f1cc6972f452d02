-- prun check PLAN --nproc 2
-- A placement is written S(dim).
local prun = require "prun"

local wrong = prun.strategy("wrong", { axis = "tp" }, function(unit, opt)
  for _, layer in ipairs(unit:find "up") do layer:place { [opt.axis] = "columns" } end
end, { splits = "nothing" })

return prun.plan {
  mesh      = prun.mesh { tp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { wrong {} },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 1,
  steps     = 2,
}
