-- The tutorials' MLP with data parallelism: matrices followed by gelu, the batch split over ranks.

local prun = require "prun"

local arg = prun.args {
  layers = { 8, "matrices", least = 1 },
  width  = { 1024, "rows and columns of each", least = 1 },
  batch  = { 512, "samples in a step, over all ranks", least = 1 },
  micro  = { 1, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
  steps  = { 20, "training steps", least = 1 },
  seed   = { 0, "of initial weights and data" },
  lr     = { 1e-3, "learning rate" },
  dtype  = { "f32", "f32, bf16 or f64" },
  reduce = { "any", "rank_order: sums in the order of ranks, bit for bit" },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.mlp { inputs = arg.width, outputs = arg.width, width = arg.width, layers = arg.layers,
                                bias = false, activation = "gelu", activate_last = true },
  data      = prun.data.random { batch = arg.batch },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = arg.lr },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
