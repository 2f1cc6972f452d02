-- prun check PLAN
local prun = require "prun"
prun.mesh { dp = 1 }
