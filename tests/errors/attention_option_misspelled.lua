-- prun check PLAN
local prun = require "prun"
local nn = prun.nn
return prun.plan {
  mesh      = prun.mesh { dp = 1 },
  model     = function(batch)
    local x = nn.linear("a", batch.x, 16)
    return prun.losses.mean(nn.attention(x, 2, { kv_head = 1 }))
  end,
  data      = prun.data.random { batch = 2, inputs = 8, outputs = 16 },
  optimizer = prun.sgd { lr = 0.1 },
}
