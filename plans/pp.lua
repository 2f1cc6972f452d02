-- The tutorials' MLP as a pipeline: each rank has some of the matrices, and microbatches flow through them.

local prun = require "prun"

local arg = prun.args {
  pp     = { 2, "ranks of the pipeline", least = 1, tune = "divisors" },
  schedule = { "gpipe", "gpipe, 1f1b, interleaved, zb_h1 or zb_v", tune = "gpipe,1f1b,interleaved,zb_h1,zb_v" },
  layers = { 8, "matrices", least = 1 },
  width  = { 1024, "rows and columns of each", least = 1 },
  batch  = { 512, "samples in a step, over all ranks", least = 1 },
  micro  = { 4, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
  steps  = { 20, "training steps", least = 1 },
  seed   = { 0, "of initial weights and data" },
  lr     = { 1e-3, "learning rate" },
  dtype  = { "f32", "f32, bf16 or f64" },
  reduce = { "any", "rank_order: sums in the order of ranks, bit for bit" },
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.mlp { inputs = arg.width, outputs = arg.width, width = arg.width, layers = arg.layers,
                                bias = false, activation = "gelu", activate_last = true },
  data      = prun.data.random { batch = arg.batch },
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.schedule },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.adamw { lr = arg.lr },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
