-- prun PLAN --device cpu --device-options tf32=1
local prun = require "prun"

return prun.program(function() prun.barrier() end)
