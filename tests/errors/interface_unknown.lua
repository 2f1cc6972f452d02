-- prun PLAN --nproc 2 --interface nosuch0
local prun = require "prun"

return prun.program(function() prun.barrier() end)
