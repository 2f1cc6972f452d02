-- Evaluations with dropout and a loss that is averaged on a separate stream: the evaluation body has only the forward
-- pass, no dropout, and its compute stream ends with the loss.
local prun = require "prun"
local nn = prun.nn

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = function(batch)
    local x = nn.unit("layer0", function() return nn.dropout(nn.relu(nn.linear("in", batch.x, 8)), 0.1) end)
    return prun.losses.mse(nn.unit("out", function() return nn.linear("out", x, 4) end), batch.y)
  end,
  data      = prun.data.random { batch = 4, inputs = 4, outputs = 4 },
  eval      = prun.eval { every = 5, batches = 2 },
  strategy  = { prun.zero3 { axis = "dp" } },
  optimizer = prun.sgd { lr = prun.linear { lr = 0.1, warmup = 2 } },
}
