-- Interleaved 1F1B (Narayanan et al. 2021, "Megatron-LM"): with several chunks of layers per rank the bubble shrinks by
-- their number. Microbatches run in groups as large as the pipeline; a group runs through all chunks in order.

local prun = require "prun"

return prun.schedule("interleaved", function(rank, ranks, micro, chunks)
  -- The n-th slot of a phase is the same on every rank. The pattern covers whole groups, because otherwise ranks would
  -- wait for each other; slots of missing microbatches are skipped.
  local group = ranks * chunks
  local slots = (micro + ranks - 1) // ranks * group
  local function run(phase, n, chunk)
    local microbatch = n // group * ranks + n % ranks
    if microbatch < micro then phase(microbatch, chunk) end
  end
  local f, b = 0, 0
  local function F() run(prun.forward, f, f // ranks % chunks) f = f + 1 end
  local function B() run(prun.backward, b, chunks - 1 - b // ranks % chunks) b = b + 1 end
  local warm = math.min(slots, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
  for _ = 1, warm do F() end
  for _ = 1, slots - warm do F() B() end
  for _ = 1, warm do B() end
end, { chunks = 2 })
