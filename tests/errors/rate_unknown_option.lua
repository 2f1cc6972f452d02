-- prun check PLAN
local prun = require "prun"
local rate = prun.cosine { lr = 1e-3, warm_up = 3 }
