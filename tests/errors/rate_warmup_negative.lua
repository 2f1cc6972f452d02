-- prun check PLAN
local prun = require "prun"
local rate = prun.warmup { lr = 1e-3, warmup = -1 }
