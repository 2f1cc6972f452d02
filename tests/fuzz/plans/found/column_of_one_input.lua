-- 2 ranks
-- A weight of one row whose columns are split over tp: the verifier took them for rows.
local prun = require "prun"
local arg = prun.args { alone = false }

return prun.plan {
  mesh = arg.alone and prun.mesh { dp = 1 } or prun.mesh { tp = 2 },
  model = prun.models.mlp { inputs = 1, outputs = 4, width = 4, layers = 2 },
  data = prun.data.random { batch = 2 },
  strategy = arg.alone and {} or {
    prun.tensor_parallel { axis = "tp", column = { "linear" }, row = {}, rows = {} },
  },
  optimizer = prun.sgd { lr = 0.1 },
  steps = 2, dtype = "f64",
}
