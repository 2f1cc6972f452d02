-- Interleaved 1F1B (Narayanan et al. 2021, "Megatron-LM"): with several chunks of layers per rank the bubble shrinks by
-- their number. Microbatches run in groups as large as the pipeline; a group runs through all chunks in order.

local prun = require "prun"

return prun.schedule("interleaved", function(rank, ranks, micro, chunks)
  local forward, backward = {}, {}  -- the order of each phase, the same on every rank
  for first = 0, micro - 1, ranks do
    for chunk = 0, chunks - 1 do
      for i = first, first + ranks - 1 do
        forward[#forward + 1] = { i, chunk }
        backward[#backward + 1] = { i, chunks - 1 - chunk }
      end
    end
  end
  -- The pattern covers whole groups, because otherwise ranks would wait for each other; slots of missing microbatches
  -- are skipped.
  local f, b = 0, 0
  local function run(word, turn) if turn[1] < micro then prun[word](turn[1], turn[2]) end end
  local function F() f = f + 1; run("forward", forward[f]) end
  local function B() b = b + 1; run("backward", backward[b]) end
  local warm = math.min(#forward, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
  for _ = 1, warm do F() end
  for _ = 1, #forward - warm do F() B() end
  for _ = 1, warm do B() end
end, { chunks = 2 })
