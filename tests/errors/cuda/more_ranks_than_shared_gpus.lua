-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=1 prun PLAN --device cuda --nproc 5 --ranks-per-device 2
local prun = require "prun"

return prun.program(function() prun.barrier() end)
