-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_MEMORY_MIB=4 prun PLAN --device cuda --nproc 2
local prun = require "prun"

return prun.program(function()
  prun.all_reduce(prun.full({ 1 << 20 }, 1))
end)
