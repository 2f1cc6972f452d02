-- prun check PLAN
local prun = require "prun"
local layers = 4
local width = layer * 64
