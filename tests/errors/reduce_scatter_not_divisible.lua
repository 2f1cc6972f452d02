-- prun check PLAN --nproc 2
local prun = require "prun"
return prun.program(function()
  prun.reduce_scatter(prun.full({ 5 }, 1), "sum")
end)
