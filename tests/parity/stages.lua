-- Stages with different contents: tensor parallelism shards every weight of some, others have no parameters.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args { strategy = "ddp", tp = 2, dp = 1, norms = true, steps = 2, clip = 0.0,
                        bare = { false, "the last stage has no parameters" } }
local width = 8

return prun.plan {
  mesh = prun.mesh { pp = 2, dp = arg.dp, tp = arg.tp },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, width }, { "normal", 0.02 }))
    end)
    for i = 0, 1 do
      x = nn.unit("block" .. i, function()
        local up = nn.gelu(nn.linear("up", x, 2 * width))
        return x + nn.linear("down", up, width, { bias = false })
      end)
    end
    if arg.bare then x = nn.unit("logits", function() return nn.linear("logits", x, 256, { bias = false }) end) end
    return nn.unit("head", function()
      return prun.losses.cross_entropy(arg.bare and x or nn.linear("logits", nn.rmsnorm("ln", x), 256), batch.targets)
    end)
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = 4, context = 4 },
  strategy = { prun[arg.strategy] { axis = "dp" }, prun.tensor_parallel { axis = "tp" },
               prun.pipeline { axis = "pp", split = "flops" } },
  optimizer = prun.sgd { lr = 0.1, clip = arg.clip },
  report = arg.norms and { every = 1, norms = true } or nil,
  steps = arg.steps,
}
