-- prun check PLAN
local prun = require "prun"
return prun.plam {}
