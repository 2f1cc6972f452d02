-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=1 PRUN_SUBSTITUTE_MEMORY_MIB=30 PRUN_SUBSTITUTE_CONTEXT_MIB=12 prun PLAN --device cuda --nproc 2 --ranks-per-device 2
local prun = require "prun"

return prun.program(function()
  prun.all_reduce(prun.full({ 1 << 20 }, 1))
end)
