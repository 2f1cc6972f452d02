-- mistake: a mesh with fewer ranks than the job
-- happened: the degrees of tensor and data parallelism multiplied to fewer than the GPUs; the job
--   ran with idle GPUs
-- report: https://github.com/GitM-Labs/runtime/pull/76
-- law: axes
-- others: an inspection of GPU utilization
-- ranks: 4
-- says: the mesh dp=2 is for 2 ranks, and there are 4 (--nproc)
local prun, museum = require "prun", require "museum"


return museum.plan {
  mesh = prun.mesh { dp = museum.wrong and 2 or prun.rest }, -- here
  strategy = { prun.ddp {} },
}
