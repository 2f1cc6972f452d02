-- One forward, one backward (Narayanan et al. 2019, "PipeDream"): backward starts as early as possible, so that rank r
-- holds the activations of at most ranks - r microbatches.

local prun = require "prun"

return prun.schedule("1f1b", function(rank, ranks, micro)
  local warm, f, b = math.min(micro, ranks - rank - 1), 0, 0
  local function F() prun.forward(f);  f = f + 1 end
  local function B() prun.backward(b); b = b + 1 end
  for _ = 1, warm do F() end
  for _ = 1, micro - warm do F() B() end
  for _ = 1, warm do B() end
end)
