-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=1 PRUN_SUBSTITUTE_COMPUTE_MODE=3 prun PLAN --device cuda --nproc 2 --ranks-per-device 2
local prun = require "prun"

return prun.program(function()
  prun.all_reduce(prun.full({ 1 << 20 }, 1))
end)
