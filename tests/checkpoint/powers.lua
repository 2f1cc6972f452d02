-- Sample i of the data is 2^i, so a step's loss identifies its samples: loss x batch / weight is the sum of their
-- powers. With lr 0 the weight does not change.
local prun = require "prun"

local arg = prun.args { path = "x.npy", batch = 4, per_rank = 0, micro = 1, steps = 2, order = "epochs", lr = 0.0, hold_out = 0.0,
                        batches = "1", seed = 0 }

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = prun.models.mlp { inputs = 1, outputs = 1, layers = 1, bias = false, loss = "mean" },
  data  = prun.data.arrays { x = arg.path, batch = arg.per_rank > 0 and arg.per_rank * prun.world or arg.batch, order = arg.order },
  eval  = arg.hold_out > 0 and prun.eval { every = 1, hold_out = arg.hold_out, batches = arg.batches == "all" and "all" or 1 } or nil,
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = arg.lr, clip = 1e30 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
}
