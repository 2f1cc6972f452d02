-- mistake: a mesh of fewer ranks than there are
-- happened: sizes of tensor and data parallelism that multiply to fewer than the GPUs left some
--   idle, and the job ran
-- report: https://github.com/GitM-Labs/runtime/pull/76
-- law: axes
-- others: a look at which GPUs are busy
-- ranks: 4
-- says: the mesh dp=2 is for 2 ranks, and there are 4 (--nproc)
local prun, museum = require "prun", require "museum"


return museum.plan {
  mesh = prun.mesh { dp = museum.wrong and 2 or prun.rest }, -- here
  strategy = { prun.ddp {} },
}
