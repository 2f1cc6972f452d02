-- prun PLAN --device cpu:1
local prun = require "prun"

return prun.program(function() prun.barrier() end)
