-- mistake: a batch that does not divide into the microbatches
-- happened: a batch of 8 in 3 microbatches had unequal
--   sizes, which did not fit the buffers of later
--   stages
-- report: https://github.com/pytorch/pytorch/issues/126600
-- law: division
-- others: a test with a batch that does not divide
-- ranks: 2
-- says: the global batch of 8 samples is not divisible by 3 microbatches; the next that is: 9
local prun, museum = require "prun", require "museum"


return museum.plan {
  mesh = prun.mesh { pp = 2 },
  data = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 16 }, -- here
  micro = museum.wrong and 3 or 4, strategy = { prun.pipeline {} },
}
