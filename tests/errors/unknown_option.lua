-- prun PLAN --nprocs 2
local prun = require "prun"

return prun.program(function() prun.barrier() end)
