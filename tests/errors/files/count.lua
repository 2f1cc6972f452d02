-- A count whose sum exceeds max, which only the ranks can detect.
local prun = require "prun"
return prun.program(function(r)
  local n = prun.random_int(1, 5)
  prun.all_reduce(n, "sum")
  prun.print(prun.iota(n, { max = 5 }))
end)
