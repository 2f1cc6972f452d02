-- PRUN_DEVICE_PATH=PLUGINS prun PLAN --device cuda --device-options tf64=1
local prun = require "prun"

return prun.program(function() prun.barrier() end)
