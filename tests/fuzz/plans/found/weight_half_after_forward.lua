-- 2 ranks
-- zero3 kept the last unit's weights for a backward that only computed gradients of weights, and that freed nothing.
local prun = require "prun"
local arg = prun.args { alone = false }

local later = prun.schedule("later", function(_, _, micro)
  for i = 0, micro - 1 do
    prun.forward(i)
    if i > 0 then prun.backward_weight(i - 1) end
    prun.backward_input(i)
  end
  prun.backward_weight(micro - 1)
end)

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh({ { "dp", 2 }, { "pp", 1 } }),
  model = prun.models.gpt { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 6 },
  strategy = arg.alone and {} or { prun.zero3 { axis = "dp" }, prun.pipeline { axis = "pp", schedule = later } },
  optimizer = prun.sgd { lr = 0.1 },
  micro = 3, steps = 2, seed = 0, dtype = "f64",
}
