-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=1 prun PLAN --device cuda --nproc 2 --ranks-per-device 2 --transport nccl
local prun = require "prun"

return prun.program(function() prun.barrier() end)
