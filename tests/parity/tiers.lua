-- A tiny GPT under each strategy that adds the same numbers in the same order.

local prun = require "prun"

local arg = prun.args {
  strategy = { "ddp", "none, ddp, zero1, zero2 or zero3" },
  layers = 4, width = 16, heads = 2, context = 8, batch = 16, micro = 1, steps = 4, lr = 1e-3, pp = 1, clip = 0.0,
  reduce = "rank_order",
}

local strategy = arg.strategy == "none" and {} or { prun[arg.strategy] { axis = "dp" } }
if arg.pp > 1 then strategy = { prun.pipeline { axis = "pp", schedule = "1f1b" } } end

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = "text/sample.txt", batch = arg.batch },
  strategy  = strategy,
  optimizer = prun.adamw { lr = arg.lr, clip = arg.clip },
  micro     = arg.micro, steps = arg.steps, reduce = arg.reduce,
}
