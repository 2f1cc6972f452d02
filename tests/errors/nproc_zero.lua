-- prun PLAN --nproc 0
local prun = require "prun"

return prun.program(function() prun.barrier() end)
