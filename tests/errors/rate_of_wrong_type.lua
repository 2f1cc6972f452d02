-- prun check PLAN
local prun = require "prun"
local optimizer = prun.sgd { lr = "fast" }
