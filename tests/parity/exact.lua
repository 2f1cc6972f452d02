-- Blocks without norms and softmax on integers: every sum is exact, so any two orders of addition agree bitwise, and a
-- missing, doubled or wrong-group reduction changes the result.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args { tp = 1, pp = 1, micro = 1, sequence = false, steps = 2 }

local strategy = { prun.ddp { axis = "dp" } }
if arg.tp > 1 then
  table.insert(strategy, 1, prun.tensor_parallel { axis = "tp", sequence = arg.sequence })
end
if arg.pp > 1 then table.insert(strategy, prun.pipeline { axis = "pp", schedule = "1f1b" }) end

return prun.plan {
  mesh  = prun.mesh { pp = arg.pp, dp = prun.rest, tp = arg.tp },
  model = function(batch)
    local x = nn.unit("embed", function()
      local table = nn.parameter("token.weight", { 256, 4 }, { "constant", 1 })
      return nn.embedding(batch.tokens, table, nn.parameter("position.weight", { 8, 4 }, { "ones" }))
    end)
    for i = 0, 1 do
      x = nn.unit("block" .. i, function()
        local up = nn.relu(nn.linear("up", x, 8, { init = { "constant", 1 }, bias_init = { "constant", -4 } }))
        return x + nn.linear("down", up, 4, { init = { "constant", 0.5 }, bias_init = { "ones" } })
      end)
    end
    return nn.unit("head", function()
      return prun.losses.mean(nn.linear("logits", x, 4, { init = { "constant", 0.25 }, bias = false }))
    end)
  end,
  data      = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 8 },
  strategy  = strategy,
  optimizer = prun.sgd { lr = 2 ^ -6 },
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = "f64",
  reduce    = "rank_order",
}
