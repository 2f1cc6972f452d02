-- prun check PLAN --nproc 2
local prun = require "prun"
return prun.program(function()
  local x = prun.full({ 5 }, 1)
  prun.all_reduce(x, "summ")
end)
