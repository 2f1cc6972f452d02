-- history.lua: a small training on one or several ranks, for the history of its checkpoints.
local prun = require "prun"
local arg = prun.args { steps = 10, lr = 0.003, seed = 0, clip = 0.0, width = 16, heads = 2, init = "" }

return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = prun.models.gpt { vocab = 256, layers = 1, width = arg.width, heads = arg.heads, context = 12 },
  init = arg.init ~= "" and prun.init.from { path = arg.init } or nil,
  data = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy = { prun.zero1 { axis = "dp" } },
  optimizer = prun.adamw { lr = arg.lr, clip = arg.clip },
  steps = arg.steps,
  seed = arg.seed,
}
