-- A gated MLP under tensor parallelism: gate and up read the same x, so one all-reduce of dx overlaps with both dw.
local prun = require "prun"

local arg = prun.args { layers = 1, width = 16, context = 8, batch = 4, tp = 2, sequence = false }

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, tp = arg.tp },
  model     = prun.models.llama { vocab = 256, layers = arg.layers, width = arg.width, heads = 4, kv_heads = 2,
                                  context = arg.context },
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = arg.batch },
  strategy  = { prun.tensor_parallel { axis = "tp", sequence = arg.sequence }, prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  steps     = 2,
}
