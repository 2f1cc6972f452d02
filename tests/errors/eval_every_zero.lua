-- prun check PLAN
local prun = require "prun"
local eval = prun.eval { every = 0 }
