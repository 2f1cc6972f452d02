-- prun check PLAN --nproc 2
local prun = require "prun"
return prun.program(function(r)
  prun.print(r.ranks)
end)
