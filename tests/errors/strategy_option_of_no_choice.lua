-- prun check PLAN
local prun = require "prun"
return prun.plan { strategy = { prun.ddp { axis = "dp", offload = "parameters" } } }
