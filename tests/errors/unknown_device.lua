-- prun PLAN --device cuda
local prun = require "prun"

return prun.program(function() prun.barrier() end)
