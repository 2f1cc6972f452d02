-- A count that adds up to more than max: only the ranks can know.
local prun = require "prun"
return prun.program(function(r)
  local n = prun.random_int(1, 5)
  prun.all_reduce(n, "sum")
  prun.print(prun.iota(n, { max = 5 }))
end)
