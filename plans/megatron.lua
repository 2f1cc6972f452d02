-- A small GPT on a text file as in Megatron-LM: weights split over tp, tokens split between the layers, data over dp.

local prun = require "prun"

local arg = prun.shared_args {
  tp       = { 2, "ranks that split the weights", least = 1, tune = "node" },
  sequence = { true, "split tokens between the layers (sequence parallelism)", tune = "true,false" },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, tp = arg.tp },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.tensor_parallel { axis = "tp", sequence = arg.sequence },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
