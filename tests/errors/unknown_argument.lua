-- prun check PLAN
local prun = require "prun"
local arg = prun.args { layers = 4 }
local layers = arg.layer
