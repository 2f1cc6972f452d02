-- A small GPT on a text file in a pipeline without bubbles: weight gradients fill the idle time (zb_h1 or zb_v).

local prun = require "prun"

local arg = prun.shared_args {
  pp       = { 2, "ranks of the pipeline", least = 1, tune = "divisors" },
  schedule = { "zb_h1", "zb_h1, or zb_v: two chunks a rank, placed as a V", tune = "zb_h1,zb_v" },
  micro    = { 8, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.schedule },
    prun.ddp { axis = "dp" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
