-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DRIVER=0 prun PLAN --device cuda
local prun = require "prun"

return prun.program(function() prun.barrier() end)
