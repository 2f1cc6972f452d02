-- prun check PLAN
local prun = require "prun"
return prun.plan(mesh = prun.mesh { dp = 2 })
