-- prun check PLAN
local prun = require "prun"
local rate = prun.linear { lr = 1e-3, least = 1e-2 }
