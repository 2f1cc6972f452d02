-- prun dump PLAN --after fuse
local prun = require "prun"

return prun.program(function() prun.barrier() end)
