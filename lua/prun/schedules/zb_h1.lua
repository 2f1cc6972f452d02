-- Zero bubble, H1 (Qi et al. 2023): 1F1B with split backward. Only the input gradient is urgent, because the previous
-- stage waits for it; weight gradients fill the bubble. Every rank keeps the activations of as many microbatches as the
-- first rank does under 1F1B.

local prun = require "prun"

return prun.schedule("zb_h1", function(rank, ranks, micro)
  local warm, f, i, w = math.min(micro, ranks - rank - 1), 0, 0, 0
  local function F() prun.forward(f); f = f + 1 end
  local function W() prun.backward_weight(w); w = w + 1 end
  local function I()
    prun.backward_input(i)
    i = i + 1
    if i > rank then W() end
  end
  for _ = 1, warm do F() end
  for _ = 1, micro - warm do F() I() end
  for _ = 1, warm do I() end
  while w < micro do W() end
end)
