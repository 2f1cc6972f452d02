-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=3 prun PLAN --device cuda:1 --nproc 5
local prun = require "prun"

return prun.program(function() prun.barrier() end)
