-- PyTorch's example of DDP: three wide linear layers with ReLU between them, SGD, gradients averaged in 25 MiB buckets.

local prun = require "prun"

local arg = prun.args {
  width  = { 4000, "inputs and outputs of each layer", least = 1 },
  batch  = { 1000 * prun.world, "samples in a step, over all ranks", least = 1 },
  steps  = { 10, "training steps", least = 1 },
  seed   = { 0, "of initial weights and data" },
  lr     = { 1e-3, "learning rate" },
  dtype  = { "f32", "f32, bf16 or f64" },
  reduce = { "any", "rank_order: sums in the order of ranks, bit for bit" },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = arg.width, outputs = arg.width, width = arg.width, layers = 3,
                                activation = "relu" },
  data      = prun.data.random { batch = arg.batch },
  strategy  = { prun.ddp { axis = "dp", bucket = "25 MiB" } },
  optimizer = prun.sgd { lr = arg.lr },
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
