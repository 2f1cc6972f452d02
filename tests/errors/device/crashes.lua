-- PRUN_DEVICE_PATH=PLUGINS prun PLAN --device crashing
local prun = require "prun"

return prun.program(function() prun.barrier() end)
