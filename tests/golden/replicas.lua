-- What is alike along each axis: along dp what zero3 does not shard, along tp what is not cut.
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
