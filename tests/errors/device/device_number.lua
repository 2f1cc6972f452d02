-- prun PLAN --device cpu:x
local prun = require "prun"

return prun.program(function() prun.barrier() end)
