-- PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_DEVICES=0 PRUN_SUBSTITUTE_DIVIDED=2 prun PLAN --device cuda
local prun = require "prun"

return prun.program(function()
  prun.all_reduce(prun.full({ 1 << 20 }, 1))
end)
