-- prun PLAN --set steps
local prun = require "prun"

return prun.program(function() prun.barrier() end)
