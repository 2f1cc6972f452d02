-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=2 prun PLAN --device cuda:5
local prun = require "prun"

return prun.program(function() prun.barrier() end)
