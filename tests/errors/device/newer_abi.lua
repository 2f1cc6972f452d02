-- PRUN_DEVICE_PATH=PLUGINS prun PLAN --device newer
local prun = require "prun"

return prun.program(function() prun.barrier() end)
