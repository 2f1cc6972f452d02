-- prun PLAN --nproc 2 --device cpu --ranks-per-device 2
local prun = require "prun"

return prun.program(function() prun.barrier() end)
