-- prun PLAN --nproc -1
local prun = require "prun"

return prun.program(function() prun.barrier() end)
