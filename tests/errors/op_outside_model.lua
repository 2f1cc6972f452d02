-- prun check PLAN
local prun = require "prun"
local x = prun.nn.relu(1)
