-- prun PLAN --nproc 2
local prun = require "prun"
return prun.plan {
  mesh = prun.mesh { dp = 2 ],
}
