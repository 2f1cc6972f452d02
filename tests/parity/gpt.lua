-- A tiny GPT under a given strategy, for the parity tests.

local prun = require "prun"

local arg = prun.args {
  strategy = { "zero3", "single, ddp or zero3" },
  optimizer = { "adamw", "adamw or sgd" },
  clip = { 0.0, "bound of the norm of all gradients" },
  layers = 2, width = 32, heads = 2, context = 16, batch = 24, steps = 20, seed = 7, lr = 1e-3,
  tied = { false, "the head is the token embedding" },
  eval = { 0, "evaluations after every so many steps; 0: none", least = 0 },
  report = { 0, "reports after every so many steps; 0: none", least = 0 },
  dtype = "f32", micro = 1,
  reduce = "rank_order",
}

local strategies = {
  single = function() return {} end,
  ddp = function() return { prun.ddp { axis = "dp", bucket = "32 KiB", first = "4 KiB" } } end,
  zero3 = function() return { prun.zero3 { axis = "dp", prefetch = 1 } } end,
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context, tied = arg.tied },
  data      = prun.data.bytes { path = "text/sample.txt", batch = arg.batch },
  strategy  = strategies[arg.strategy](),
  optimizer = prun[arg.optimizer] { lr = arg.lr, clip = arg.clip },
  eval      = arg.eval > 0 and prun.eval { every = arg.eval, batches = 2 } or nil,
  report    = arg.report > 0 and { every = arg.report, norms = true } or nil,
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
