-- PRUN_DEVICE_PATH=tests/errors/files/devices prun PLAN --device broken
local prun = require "prun"

return prun.program(function() prun.barrier() end)
