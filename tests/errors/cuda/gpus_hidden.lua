-- CUDA_VISIBLE_DEVICES=-1 PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=0 prun PLAN --device cuda
local prun = require "prun"

return prun.program(function() prun.barrier() end)
