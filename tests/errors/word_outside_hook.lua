-- prun check PLAN
local prun = require "prun"
prun.all_reduce(1, "sum")
