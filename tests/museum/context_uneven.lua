-- mistake: a context that does not divide into the chunks of context parallelism
-- happened: sample lengths were rounded down to a multiple of twice the ranks, so the last tokens
--   were ignored
-- report: https://github.com/NVIDIA/TransformerEngine/issues/1930
-- law: division
-- others: a parity run with an odd length
-- ranks: 2
-- says: 14 tokens do not divide into the two chunks of each of the 2 ranks of axis 'cp'; the next
--   number that does is 16
local prun, museum = require "prun", require "museum"


return museum.plan {
  mesh = prun.mesh { cp = 2 },
  model = prun.models.llama { layers = 1, width = 32, heads = 2, context = museum.wrong and 14 or 16 },
  data = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy = { prun.context_parallel {} }, -- here
}
