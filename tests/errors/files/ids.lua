-- Tables and logits that are smaller than the ids of the data.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { rows = 256, out = 256, tp = false }
return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { arg.rows, 16 }, { "normal", 0.02 }))
    end)
    return nn.unit("head", function()
      return prun.losses.cross_entropy(nn.linear("logits", x, arg.out), batch.targets)
    end)
  end,
  data      = prun.data.bytes { path = "text/sample.txt", batch = 4, context = 8 },
  strategy  = arg.tp and { prun.tensor_parallel { axis = "dp" } } or { prun.ddp {} },
  optimizer = prun.sgd { lr = 0.1 }, steps = 2,
}
