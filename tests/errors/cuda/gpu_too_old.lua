-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_CAPABILITY=75 prun PLAN --device cuda
local prun = require "prun"

return prun.program(function() prun.barrier() end)
