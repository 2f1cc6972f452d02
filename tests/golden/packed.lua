-- Two microbatches read each weight: it is packed once, for forward and turned for dx, where the CPU's products gain.
local prun = require "prun"

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = 64, layers = 2, width = 64, outputs = 64 },
  data      = prun.data.random { batch = 16, inputs = 64, outputs = 64 },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = 0.1 },
  micro     = 2,
  pack_weights = "all",
}
