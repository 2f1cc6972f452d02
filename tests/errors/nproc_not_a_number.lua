-- prun PLAN --nproc x
local prun = require "prun"

return prun.program(function() prun.barrier() end)
