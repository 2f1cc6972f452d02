-- Zero bubble, V (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): two chunks per rank, placed as a V,
-- so that the first rank holds the first and the last stage. Every rank keeps the same number of activations.

local prun = require "prun"

return prun.schedule("zb_v", function(rank, ranks, micro)
  local f, i, w = { [0] = 0, 0 }, { [0] = 0, 0 }, { [0] = 0, 0 }
  -- The pattern is that of many microbatches; slots of missing microbatches are skipped.
  local function turn(count, word)
    return function(chunk)
      if count[chunk] < micro then prun[word](count[chunk], chunk) end
      count[chunk] = count[chunk] + 1
    end
  end
  local F, I, W = turn(f, "forward"), turn(i, "backward_input"), turn(w, "backward_weight")
  local many = math.max(micro, 2 * ranks - 1)

  for _ = 1, 2 * (ranks - rank) - 1 do F(0) end
  for _ = 1, rank do F(1) F(0) end
  for _ = 1, ranks - rank do F(1) I(1) W(1) end
  while f[1] < f[0] or f[0] < many do
    if f[0] < many then F(0) end
    I(0) W(0)
    F(1) I(1) W(1)
  end
  for _ = 1, rank do I(0) I(1) end
  for _ = 1, ranks - rank do I(0) W(0) end
  while w[1] < i[1] do W(1) end
  while w[0] < i[0] do W(0) end
end, { chunks = 2, placement = "v" })
