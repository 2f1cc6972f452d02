-- A schedule of one's own: 1F1B with twice the warm-up, so that sends overlap with compute; it costs activations.

local prun = require "prun"

local eager = prun.schedule("eager_1f1b", function(rank, ranks, micro)
  local warm, f, b = math.min(micro, 2 * (ranks - rank - 1)), 0, 0
  local function F() prun.forward(f);  f = f + 1 end
  local function B() prun.backward(b); b = b + 1 end
  for _ = 1, warm do F() end
  for _ = 1, micro - warm do F() B() end
  for _ = 1, warm do B() end
end)

local arg = prun.shared_args {
  pp    = { 2, "ranks of the pipeline", least = 1, tune = "divisors" },
  micro = { 8, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { prun.pipeline { axis = "pp", schedule = eager }, prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro, steps = arg.steps, seed = arg.seed, dtype = arg.dtype, reduce = arg.reduce,
}
