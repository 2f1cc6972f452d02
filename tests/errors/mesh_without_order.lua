-- prun check PLAN --nproc 4
local prun = require "prun"
local mesh = prun.mesh { x = 2, y = 2 }
