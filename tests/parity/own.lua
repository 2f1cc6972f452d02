-- User-defined schedules and models: microbatches in reverse order, whole and split backward in one schedule, and an op
-- between split logits and their loss.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args { schedule = "1f1b", strategy = "none", scaled = false, pp = 1, tp = 1 }

local schedules = {
  ["1f1b"] = "1f1b",
  backwards = prun.schedule("backwards", function(_, _, micro)
    for i = micro - 1, 0, -1 do prun.forward(i) end
    for i = micro - 1, 0, -1 do prun.backward(i) end
  end),
  halves = prun.schedule("halves", function(_, _, micro)
    for i = 0, micro - 1 do prun.forward(i) end
    for i = 0, micro - 1 do
      if i % 2 == 0 then prun.backward(i) else prun.backward_input(i) end
    end
    for i = 1, micro - 1, 2 do prun.backward_weight(i) end
  end),
}

local function scaled(batch)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 16 }, { "normal", 0.1 }))
  end)
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.scale(nn.linear("logits", x, 256), 0.5), batch.targets)
  end)
end

local strategy = {}
if arg.pp > 1 then strategy[1] = prun.pipeline { axis = "pp", schedule = schedules[arg.schedule] } end
if arg.tp > 1 then strategy[#strategy + 1] = prun.tensor_parallel { axis = "tp" } end
if arg.strategy ~= "none" then strategy[#strategy + 1] = prun[arg.strategy] { axis = "dp" } end

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest, tp = arg.tp },
  model     = arg.scaled and scaled or prun.models.gpt { vocab = 256, layers = 2, width = 16, heads = 2, context = 8 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 8 },
  strategy  = strategy,
  optimizer = prun.sgd { lr = 0.1, clip = 1.0 },
  micro     = 4,
  steps     = 4,
  dtype     = "f64",
}
