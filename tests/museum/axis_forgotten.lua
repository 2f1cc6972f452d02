-- mistake: a mesh axis that no strategy uses
-- happened: context parallelism without data parallelism wrapped no module, so no gradient was
--   reduced and the loss diverged
-- report: https://github.com/pytorch/torchtitan/pull/685
-- law: axes
-- others: a parity run; a comparison of ranks' weights
-- ranks: 2
-- says: no strategy uses mesh axis 'cp' of 2 ranks: they would all do the same; give one the option
--   axis = "cp"
local prun, museum = require "prun", require "museum"


return museum.plan {
  mesh = prun.mesh { cp = 2 }, -- here
  model = prun.models.llama { layers = 1, width = 32, heads = 2, context = 16 },
  strategy = { museum.wrong and prun.recompute {} or prun.context_parallel {} },
}
