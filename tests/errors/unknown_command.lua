-- prun chek PLAN
local prun = require "prun"

return prun.program(function() prun.barrier() end)
