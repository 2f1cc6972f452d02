-- mistake: fewer KV heads than ranks that split them
-- happened: kv_heads // tp, with 2 heads over 8 ranks, gave each rank 0 heads
-- report: https://github.com/ai-dynamo/modelexpress/pull/650
-- law: division
-- others: a test with more ranks than heads
-- ranks: 4
-- says: 2 key and value heads of the attention at lua/prun/models/llama_parts.lua do not divide
--   over the 4 ranks of axis 'tp'
local prun, museum = require "prun", require "museum"


return museum.plan {
  mesh = prun.mesh { tp = 4 }, strategy = { prun.tensor_parallel {} }, -- here
  model = prun.models.llama { layers = 1, width = 32, heads = 4, kv_heads = museum.wrong and 2 or 4, context = 16 },
}
