-- mistake: an axis that splits the batch for one strategy and the tokens for another
-- happened: the sharder received a mesh of dp and cp; it sharded over cp and replicated over
--   dp
-- report: https://github.com/NVIDIA-NeMo/Automodel/pull/2768
-- law: axes
-- others: an inspection of shard sizes
-- ranks: 4
-- says: axis 'cp' is used twice: context_parallel splits the tokens over it, and zero3 (this file)
--   splits the batch; give each its own
local prun, museum = require "prun", require "museum"


local zero3 = prun.zero3 { axis = "dp", over = museum.wrong and { "dp", "cp" } or nil }
return museum.plan {
  mesh = prun.mesh { dp = 2, cp = 2 }, model = prun.models.llama { layers = 1, width = 32, heads = 2, context = 16 },
  strategy = { zero3, prun.context_parallel { axis = "cp" } }, -- here
}
