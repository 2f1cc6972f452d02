-- prun check PLAN --nproc 2
local prun = require "prun"
return prun.program(function()
  prun.broadcast(prun.full({ 5 }, 1), 2)
end)
