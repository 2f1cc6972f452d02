-- 2 ranks, device=reference
-- The verifier refused the bf16 copies of weights that drift apart between averages.
local prun = require "prun"
local arg = prun.args { alone = false }

local local_sgd = prun.strategy("local_sgd", { axis = { "dp", "mesh axis" }, every = { 2, "steps" } }, function(unit, opt)
  unit:every(opt.every, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
end, { differs = "weights drift between averages" })

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh { dp = 2 },
  model = prun.models.gpt { heads = 1, layers = 1, context = 2, vocab = 16, width = 2 },
  data = prun.data.tokens { path = "ids.bin", batch = 2 },
  strategy = arg.alone and {} or { local_sgd { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps = 3, dtype = "bf16",
}
