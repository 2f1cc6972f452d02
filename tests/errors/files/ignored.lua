-- Options of losses that do not fit: --set case=NAME.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "" }

local function of(options, other)
  return function(batch)
    local y = nn.linear("l", nn.gelu(nn.linear("up", batch.x, 8)), 4)
    if other then other(y, batch) end
    return prun.losses.cross_entropy(y, batch.y, options(y, batch))
  end
end

local cases = {
  -- cross_entropy
  weights_computed = of(function(y) return { weights = y } end),
  weights_of_ids = of(function(_, batch) return { weights = batch.y } end),
  weights_for_others = of(function(_, batch) return { weights = batch.x } end),
  smoothing_above_1 = of(function() return { label_smoothing = 1.5 } end),
  two_ignored_ids = of(function() return { ignore = -1 } end,
    function(y, batch) prun.losses.cross_entropy(y, batch.y) end),
  no_counting_label = of(function() return { ignore = 3 } end),
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = cases[arg.case],
  data      = prun.data.arrays { x = "tests/errors/files/x.npy", y = "tests/errors/files/threes.npy", batch = 4 },
  strategy  = { prun.ddp {} },
  optimizer = prun.sgd { lr = 0.1 }, steps = 2,
}
