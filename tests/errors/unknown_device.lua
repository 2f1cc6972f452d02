-- prun PLAN --device cuba
local prun = require "prun"

return prun.program(function() prun.barrier() end)
