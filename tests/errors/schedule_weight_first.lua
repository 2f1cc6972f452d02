-- prun check PLAN --nproc 2
-- The weights' half comes second.
local prun = require "prun"

local wrong = prun.schedule("wrong", function(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) prun.backward_weight(i) prun.backward_input(i) end
end)

return prun.plan {
  mesh      = prun.mesh { pp = 2 },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy  = { prun.pipeline { axis = "pp", schedule = wrong } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 2,
  steps     = 2,
}
