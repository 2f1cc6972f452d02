-- Replicated tensors of each axis: along dp those that zero3 does not shard, along tp those that are not split.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = 2, tp = 2 },
  model     = prun.models.mlp { inputs = 4, outputs = 4, width = 8, layers = 2 },
  data      = prun.data.random { batch = 4 },
  strategy  = {
    prun.ddp { axis = "dp" },
    prun.tensor_parallel { axis = "tp", column = { "linear" }, row = {}, rows = {} },
  },
  optimizer = prun.adamw { lr = 0.1 },
}
