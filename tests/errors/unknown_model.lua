-- prun check PLAN
local prun = require "prun"
local model = prun.models.gtp { layers = 2 }
